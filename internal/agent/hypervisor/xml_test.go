// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// largeDomain is about the largest that an honest libvirtd describes: 512 vCPUs, each pinned, and 100 disks.
func largeDomain() string {
	var b strings.Builder
	b.WriteString("<domain type='kvm'><name>large</name><vcpus>")
	for i := range 512 {
		fmt.Fprintf(&b, "<vcpu id='%d' enabled='yes' hotpluggable='no' order='%d'/>", i, i+1)
	}
	b.WriteString("</vcpus><cputune>")
	for i := range 512 {
		fmt.Fprintf(&b, "<vcpupin vcpu='%d' cpuset='%d'/>", i, i)
	}
	b.WriteString("</cputune><devices>")
	for i := range 100 {
		fmt.Fprintf(&b, "<disk type='file' device='disk'><driver name='qemu' type='qcow2' cache='none' error_policy='stop' discard='unmap'/>"+
			"<source file='/var/run/kubevirt-private/vmi-disks/volume-%d/disk.img' index='1'/><backingStore type='file' index='2'>"+
			"<format type='raw'/><source file='/a'/><backingStore/></backingStore><target dev='vd%d' bus='virtio'/>"+
			"<alias name='ua-volume-%d'/><address type='pci' domain='0x0000' bus='0x07' slot='0x00' function='0x0'/></disk>", i,
			i, i)
	}
	b.WriteString("</devices></domain>")
	return b.String()
}

func TestXMLIsCountedBeforeItIsParsed(t *testing.T) {
	within := func(inner string) string { return "<domain><devices>" + inner + "</devices></domain>" }
	for name, tc := range map[string]struct {
		text    string
		refused bool
	}{
		"a large domain":        {largeDomain(), false},
		"too many disks":        {within(strings.Repeat("<disk/>", hypervisor.MaxXMLElements)), true},
		"disks by the megabyte": {within(strings.Repeat("<disk/>", 600_000)), true},
		"a name without an end": {"<domain><name>" + strings.Repeat("x", hypervisor.MaxXML) + "</name></domain>", true},
		"too deep":              {strings.Repeat("<domain>", 100) + strings.Repeat("</domain>", 100), true},
		"too many attributes":   {"<domain " + strings.Repeat("a='' ", 1000) + "/>", true},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := hypervisor.ReadXML(t.Context(), tc.text, &libvirtxml.Domain{})
			runtime.ReadMemStats(&after)
			if refused := errors.Is(err, hypervisor.ErrXML); refused != tc.refused || !refused && err != nil {
				t.Errorf("refused: %t, want %t (%v)", refused, tc.refused, err)
			}
			const limit = 16 << 20
			if got := after.TotalAlloc - before.TotalAlloc; got > limit {
				t.Errorf("%d bytes of XML took %d bytes of memory, want at most %d", len(tc.text), got, limit)
			}
		})
	}
}

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
	if later := strings.Replace(earlier, "23:14:17.336533", "23:15:41.000001",
		1); hypervisor.Failure(earlier) != hypervisor.Failure(later) {
		t.Errorf("%q differs from %q", hypervisor.Failure(earlier), hypervisor.Failure(later))
	}
}
