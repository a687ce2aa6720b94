// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func memoryOf(quantity string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(quantity)}
}

func guestMemory(quantity, page string) func(*v1.DomainSpec) {
	return func(d *v1.DomainSpec) {
		d.Memory = &v1.Memory{}
		if quantity != "" {
			parsed := resource.MustParse(quantity)
			d.Memory.Guest = &parsed
		}
		if page != "" {
			d.Memory.Hugepages = &v1.Hugepages{PageSize: page}
		}
	}
}

func TestMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1.DomainSpec)
		want   uint
	}{
		"guest":                {guestMemory("1Gi", ""), 1048576},
		"odd bytes round up":   {guestMemory("1048577", ""), 1025},
		"guest before request": {func(d *v1.DomainSpec) { guestMemory("2Mi", "")(d); d.Resources.Requests = memoryOf("1Gi") }, 2048},
		"request": {func(d *v1.DomainSpec) {
			d.Memory, d.Resources.Requests, d.Resources.Limits = nil, memoryOf("2Mi"), memoryOf("4Mi")
		}, 2048},
		"limit":     {func(d *v1.DomainSpec) { d.Memory, d.Resources.Limits = nil, memoryOf("4Mi") }, 4096},
		"huge page": {guestMemory("", "2Mi"), 2048},
		"maxGuest is no part of a start": {func(d *v1.DomainSpec) {
			guestMemory("2Mi", "")(d)
			most := resource.MustParse("8Mi")
			d.Memory.MaxGuest = &most
		}, 2048},
	} {
		t.Run(name, func(t *testing.T) {
			got := makeGuest().domainSpec(tc.change).build(t)
			expectEqual(t, got.Memory, &libvirtxml.DomainMemory{Value: tc.want, Unit: "KiB"})
			expectEqual(t, got.CurrentMemory, &libvirtxml.DomainCurrentMemory{Value: tc.want, Unit: "KiB"})
		})
	}
}

func TestHugepages(t *testing.T) {
	got := makeGuest().domainSpec(guestMemory("64Mi", "2Mi")).build(t)
	expectEqual(t, got.MemoryBacking, &libvirtxml.DomainMemoryBacking{
		MemoryHugePages: &libvirtxml.DomainMemoryHugepages{Hugepages: []libvirtxml.DomainMemoryHugepage{{Size: 2048,
			Unit: "KiB"}}},
		MemorySource: &libvirtxml.DomainMemorySource{Type: "memfd"},
	})
	if backing := makeGuest().build(t).MemoryBacking; backing != nil {
		t.Errorf("memory backing without huge pages: %+v", backing)
	}
}

func TestMemoryRefused(t *testing.T) {
	makeGuest().domainSpec(func(d *v1.DomainSpec) { d.Memory = nil }).expectRefused(t, "spec.domain.memory.guest",
		"set it")
	makeGuest().domainSpec(guestMemory("0", "")).expectRefused(t, "spec.domain.memory.guest", "set it")
	makeGuest().domainSpec(guestMemory("3Mi", "2Mi")).expectRefused(t, "spec.domain.memory.hugepages.pageSize", "multiple")
	makeGuest().domainSpec(guestMemory("2Mi", "big")).expectRefused(t, "spec.domain.memory.hugepages.pageSize",
		"such as 2Mi")
}
