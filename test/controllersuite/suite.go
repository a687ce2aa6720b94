// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package controllersuite is what the specs of virt-controller's reconcilers share. The specs of a kind are beside its
// reconciler and call Run: each package is a suite with an API server of its own, so that go test's cache serves the
// kinds that have not changed. For the same reason this package imports no reconciler. See
// docs/adr/0112-specs-beside-their-kind.md.
package controllersuite

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/api/cdi"
	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/api/csi"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/rights"
)

// What the specs of a suite use: a real API server with our CRDs, and no controllers.
var (
	// AdminConfig has all rights.
	AdminConfig *rest.Config
	// K8sClient is the client of the specs themselves, with all rights.
	K8sClient client.WithWatch
	// ControllerConfig has the rights of virt-controller's account.
	ControllerConfig *rest.Config
	// AsController is the client of the code under test, with the rights of virt-controller's account.
	AsController client.WithWatch
)

var (
	ctx = context.Background()
	// directory is that of the suite, from the repository's root.
	directory string
	testEnv   *envtest.Environment
	audit     *rights.Audit
	shipped   *rights.Shipped
)

// Run runs the specs of a package, which is named by its directory, with the indexes of its kinds.
func Run(t *testing.T, suite string, more ...Indexes) {
	t.Helper()
	directory = suite
	for _, of := range more {
		maps.Copy(indexes, of)
	}
	// As with an API server without streaming lists: informers list, then watch.
	t.Setenv("KUBE_FEATURE_WatchListClient", "false")
	RegisterFailHandler(Fail)
	// Gomega's default of one second is too short on a busy computer.
	SetDefaultEventuallyTimeout(30 * time.Second)
	RunSpecs(t, suite)
}

// InRepository returns the path of a file of the repository.
func InRepository(path ...string) string {
	root := strings.Repeat("../", strings.Count(directory, "/")+1)
	return filepath.Join(append([]string{root}, path...)...)
}

var _ = BeforeSuite(func() {
	logf.SetLogger(zap.New(zap.WriteTo(GinkgoWriter), zap.UseDevMode(true)))
	Expect(os.Getenv("KUBEBUILDER_ASSETS")).NotTo(BeEmpty(),
		"set KUBEBUILDER_ASSETS to the directory of kube-apiserver and etcd, or use make test")
	Expect(v1.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(v1alpha1.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(poolv1.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(cdi.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(v1beta1.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(snapshotv1beta1.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(clonev1beta1.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(csi.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(exportv1.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(backupv1alpha1.AddToScheme(scheme.Scheme)).To(Succeed())
	testEnv = apiserver.New(InRepository("config", "crd", "bases"), InRepository("test", "importer"))
	// Without the gate the API server drops fields that a kubelet with it reports.
	testEnv.ControlPlane.GetAPIServer().Configure().Append("feature-gates", "ImageVolumeWithDigest=true")
	// As on OpenShift: setting blockOwnerDeletion needs the right to update the owner's finalizers.
	testEnv.ControlPlane.GetAPIServer().Configure().Append("enable-admission-plugins",
		"OwnerReferencesPermissionEnforcement")
	var err error
	audit, err = rights.NewAudit(testEnv, GinkgoT().TempDir())
	Expect(err).NotTo(HaveOccurred())
	AdminConfig, err = testEnv.Start()
	Expect(err).NotTo(HaveOccurred())
	K8sClient, err = client.NewWithWatch(AdminConfig, client.Options{Scheme: scheme.Scheme})
	Expect(err).NotTo(HaveOccurred())

	shipped, err = rights.Ship(ctx, InRepository(), K8sClient)
	Expect(err).NotTo(HaveOccurred())
	ControllerConfig = rights.Controller.Impersonate(AdminConfig, nil)
	AsController, err = client.NewWithWatch(ControllerConfig, client.Options{Scheme: scheme.Scheme})
	Expect(err).NotTo(HaveOccurred())
})

var _ = AfterSuite(func() {
	if testEnv != nil {
		Expect(testEnv.Stop()).To(Succeed())
		Expect(audit.Check(InRepository(), directory, !failed)).To(Succeed())
	}
})

// failed reports whether a spec has failed.
var failed bool

var _ = ReportAfterEach(func(report SpecReport) { failed = failed || report.Failed() })
