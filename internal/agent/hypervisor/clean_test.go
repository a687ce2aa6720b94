// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor_test

import (
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

func TestCleanLine(t *testing.T) {
	for name, tc := range map[string]struct {
		text, want string
		limit      int
	}{
		"fits":                      {"the guest is silent", "the guest is silent", 100},
		"control characters":        {"a\nb\x00c\x7fd", "a b c d", 100},
		"cut between characters":    {strings.Repeat("ü", 10), "üü", 5},
		"bytes that are not UTF-8":  {"a\xffb", "a\ufffdb", 100},
		"no room for the character": {"ü", "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := hypervisor.CleanLine(tc.text, tc.limit); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestFailure(t *testing.T) {
	const closed = "internal error: QEMU unexpectedly closed the monitor (vm='default_kvm2'): "
	for _, tc := range []struct{ message, want string }{
		{"Requested operation is not valid: domain is not running", "Requested operation is not valid: domain is not running"},
		{
			closed + "2026-11-28T23:14:17.336533Z qemu-system-x86_64: -accel kvm: warning: host doesn't support it\n" +
				"2026-11-28T23:14:17.356533Z qemu-system-x86_64: error: failed to set MSR 0x345 to 0x2000\n" +
				"qemu-system-x86_64: ../target/i386/kvm/kvm.c:3321: kvm_buf_set_msrs: Assertion `ret == cpu->kvm_msr_buf->nmsrs' failed.",
			"failed to set MSR 0x345 to 0x2000",
		},
		{
			"internal error: process exited while connecting to monitor: 2026-11-28T23:14:17Z qemu-kvm: -device virtio-blk: " +
				"Failed to get \"write\" lock\nIs another process using the image [disk.img]?",
			"-device virtio-blk: Failed to get \"write\" lock Is another process using the image [disk.img]?",
		},
		{
			closed + "qemu-system-x86_64: ../hw/core/cpu.c:12: cpu_reset: Assertion `cpu' failed.",
			"Assertion `cpu' failed.",
		},
		{closed + "2026-11-28T23:14:17.336533Z qemu-system-x86_64: warning: no matter", strings.TrimSuffix(closed, ": ")},
	} {
		if got := hypervisor.Failure(tc.message); got != tc.want {
			t.Errorf("%q:\ngot  %q\nwant %q", tc.message, got, tc.want)
		}
	}
	earlier := closed + "2026-11-28T23:14:17.336533Z qemu-system-x86_64: cannot set up guest memory"
	if later := strings.Replace(earlier, "23:14:17.336533", "23:15:41.000001", 1); hypervisor.Failure(earlier) != hypervisor.Failure(later) {
		t.Errorf("%q differs from %q", hypervisor.Failure(earlier), hypervisor.Failure(later))
	}
}
