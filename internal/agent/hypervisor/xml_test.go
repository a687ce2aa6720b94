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
			"<alias name='ua-volume-%d'/><address type='pci' domain='0x0000' bus='0x07' slot='0x00' function='0x0'/></disk>", i, i, i)
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
