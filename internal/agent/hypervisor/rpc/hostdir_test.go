// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"testing"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

func TestGiveHostDir(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs to be root to give a directory away")
	}
	n, dir := newNode(t), t.TempDir()
	give := func() error {
		process, err := anyPeer(nil, podUID)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = process.Dir.Close() }()
		c := &Conn{options: n.options, pod: hypervisor.PodRef{UID: podUID}, process: process}
		return c.GiveHostDir(context.Background(), dir)
	}
	if err := give(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if stat := info.Sys().(*syscall.Stat_t); stat.Uid != launcherpod.QEMUUser || stat.Gid != launcherpod.QEMUUser {
		t.Errorf("a directory that is younger than the Pod is of %d:%d", stat.Uid, stat.Gid)
	}
	if err := os.RemoveAll(n.options.PodsDir); err != nil {
		t.Fatal(err)
	}
	if err := give(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a Pod that the kubelet does not know: %v", err)
	}
}
