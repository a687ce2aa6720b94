// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"errors"
	"testing"

	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/test/scriptedlibvirtd"
)

// The text is in conditions and events. libvirt's Go binding prints a struct, and libvirt's message has the log of
// QEMU.
func TestErrorsHaveTheMessageOnly(t *testing.T) {
	const message = "internal error: process exited while connecting to monitor: 2026-11-29T10:00:00.000000Z qemu-system-x86_64: cannot open /dev/kvm"
	m, changed := startDaemon(t, newNode(t), func(p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		return c.Proc == scriptedlibvirtd.ProcLookup && p.Refuse(c, int32(libvirt.ERR_INTERNAL_ERROR), message) == nil
	})
	_, err := awaitConn(t, m, changed).Domain(t.Context(), "ns_vm")
	if err == nil || err.Error() != "read the domain: cannot open /dev/kvm" {
		t.Errorf("got %v", err)
	}
	if !isCode(err, libvirt.ERR_INTERNAL_ERROR) {
		t.Errorf("%v is no error of libvirt's", errors.Unwrap(err))
	}
}
