// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

func growable(size, most, page string) *guest {
	return makeGuest().domainSpec(guestMemory(size, page)).domainSpec(func(d *v1.DomainSpec) {
		d.Memory.MaxGuest = ptr.To(resource.MustParse(most))
	})
}

func TestMemoryHotplug(t *testing.T) {
	got := growable("64Mi", "256Mi",
		"").domainSpec(func(d *v1.DomainSpec) { d.CPU = &v1.CPU{Sockets: 1, MaxSockets: 4, Cores: 2} }).build(t)
	expectEqual(t, got.MaximumMemory, &libvirtxml.DomainMaxMemory{Value: 256 << 10, Unit: "KiB"})
	expectEqual(t, got.CPU.Numa, &libvirtxml.DomainNuma{Cell: []libvirtxml.DomainCell{
		{ID: ptr.To[uint](0), CPUs: "0-7", Memory: 64 << 10, Unit: "KiB"},
	}})
	for name, g := range map[string]*guest{
		"no limit":                   makeGuest(),
		"a size that is no multiple": growable("65Mi", "256Mi", ""),
		"a limit that it has":        growable("64Mi", "64Mi", ""),
		"a limit that is no limit":   growable("64Mi", "0", ""),
		"the node's NUMA topology":   numa("8Mi", 2, 0, 1).domainSpec(func(d *v1.DomainSpec) { d.Memory.MaxGuest = ptr.To(resource.MustParse("16Mi")) }),
		"memory from the resources": makeGuest().domainSpec(func(d *v1.DomainSpec) {
			d.Memory, d.Resources.Requests = &v1.Memory{MaxGuest: ptr.To(resource.MustParse("1Gi"))}, memoryOf("64Mi")
		}),
	} {
		if got := g.build(t); got.MaximumMemory != nil {
			t.Errorf("%s: %+v", name, got.MaximumMemory)
		}
	}
}

func TestMemoryDevice(t *testing.T) {
	device := func(g *guest, atBoot, requested uint) *libvirtxml.DomainMemorydevTarget {
		got := domain.MemoryDevice(g.vmi, atBoot, requested)
		if got.Model != "virtio-mem" || got.Alias.Name != "ua-memory" {
			t.Errorf("%+v", got)
		}
		return got.Target
	}
	target := func(size, block, requested uint) *libvirtxml.DomainMemorydevTarget {
		return &libvirtxml.DomainMemorydevTarget{
			Size: &libvirtxml.DomainMemorydevTargetSize{Value: size, Unit: "KiB"}, Node: &libvirtxml.DomainMemorydevTargetNode{},
			Block:     &libvirtxml.DomainMemorydevTargetBlock{Value: block, Unit: "KiB"},
			Requested: &libvirtxml.DomainMemorydevTargetRequested{Value: requested, Unit: "KiB"},
		}
	}
	const gib = 1 << 20
	expectEqual(t, device(growable("2Gi", "8Gi", ""), gib, gib/2), target(7*gib, 2<<10, gib/2))
	expectEqual(t, device(growable("2Gi", "8Gi", "2Mi"), gib, 0), target(7*gib, 2<<10, 0))
	expectEqual(t, device(growable("2Gi", "8Gi", "1Gi"), gib, 2*gib), target(7*gib, gib, 2*gib))
	expectEqual(t, device(growable("2Gi", "8Gi", ""), gib, 20*gib), target(7*gib, 2<<10, 7*gib))
	expectEqual(t, device(growable("2Gi", "8Gi", ""), 9*gib, gib), target(0, 2<<10, 0))
}
