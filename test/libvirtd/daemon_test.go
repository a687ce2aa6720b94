// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtd_test

import (
	"os"
	"testing"

	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/test/libvirtd"
)

func TestStart(t *testing.T) {
	rootfs := os.Getenv(libvirtd.RootfsEnv)
	if rootfs == "" {
		t.Skipf("%s is not set: it names the launcher image's root file system", libvirtd.RootfsEnv)
	}
	t.Setenv("LIBVIRT_AUTOSTART", "0")
	daemon := libvirtd.Start(t, rootfs)

	conn, err := libvirt.NewConnect(daemon.URI())
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer func() { _, _ = conn.Close() }()
	version, err := conn.GetLibVersion()
	if err != nil {
		t.Fatalf("read the version: %v", err)
	}
	if version < 11000000 {
		t.Errorf("libvirt's version is %d: it is that of another daemon", version)
	}

	daemon.Stop()
	select {
	case <-daemon.Done():
	default:
		t.Error("Stop returned before libvirtd had ended")
	}
	if _, err := libvirt.NewConnect(daemon.URI()); err == nil {
		t.Error("the socket accepts connections after Stop")
	}
}
