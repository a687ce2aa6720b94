// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package integration_test tests Vireo's domains, disks, networks and migrations with libvirtd and QEMU of the launcher
// image.
package integration_test

import (
	"os"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"libvirt.org/go/libvirt"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/vireo-project/vireo/test/libvirtd"
	"github.com/vireo-project/vireo/test/speclabels"
)

func TestIntegration(t *testing.T) {
	if os.Getenv(libvirtd.RootfsEnv) == "" {
		t.Skipf("%s is not set: it names the launcher image's root file system, with libvirtd and QEMU", libvirtd.RootfsEnv)
	}
	// Otherwise libvirt's client starts a libvirtd of the host when it finds a socket closed.
	t.Setenv("LIBVIRT_AUTOSTART", "0")
	savedDir = t.TempDir()
	RegisterFailHandler(Fail)
	// Gomega's default of one second is too short on a busy computer.
	SetDefaultEventuallyTimeout(30 * time.Second)
	ctrllog.SetLogger(zap.New(zap.WriteTo(GinkgoWriter), zap.UseDevMode(true)))
	suite, reporter := GinkgoConfiguration()
	if suite.LabelFilter == "" {
		suite.LabelFilter = os.Getenv(labelsEnv)
	}
	RunSpecs(t, "Integration", suite, reporter)
}

// labelsEnv names the environment variable with the label filter of the suite, for runs of several packages, which have
// no flags of Ginkgo.
const labelsEnv = "VIREO_INTEGRATION_LABELS"

// savedDir is a directory for guests that several specs start from.
var savedDir string

// extended labels specs that .ci/run does not run for each commit, as those of test/e2e.
var extended = speclabels.Extended

// startLibvirtd runs a libvirtd until the spec ends.
func startLibvirtd() (*libvirtd.Daemon, *libvirt.Connect) {
	GinkgoHelper()
	daemon := libvirtd.Start(GinkgoT(), os.Getenv(libvirtd.RootfsEnv))
	conn, err := libvirt.NewConnect(daemon.URI())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { _, _ = conn.Close() })
	return daemon, conn
}
