// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/quantity"
)

const kib = 1024

// configureMemory sets the guest's memory and its page size. A guest starts with memory.guest; memory.maxGuest is the
// limit for what is added while it runs.
func configureMemory(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	path := domainPath.Child("memory")
	guest := quantity.GuestMemory(&vmi.Spec.Domain)
	if guest == nil || guest.Sign() <= 0 {
		return field.Required(path.Child("guest"), "the guest needs memory: set it, or spec.domain.resources.requests.memory")
	}
	size := toKiB(guest)
	domain.Memory = &libvirtxml.DomainMemory{Value: size, Unit: "KiB"}
	domain.CurrentMemory = &libvirtxml.DomainCurrentMemory{Value: size, Unit: "KiB"}

	memory := vmi.Spec.Domain.Memory
	if memory == nil || memory.Hugepages == nil {
		return nil
	}
	path = path.Child("hugepages", "pageSize")
	page, err := quantity.Parse(memory.Hugepages.PageSize)
	if err != nil || page.Value() <= 0 { // Value is 0 for what is beyond an int64
		return field.Invalid(path, memory.Hugepages.PageSize, "must be the size of a huge page, such as 2Mi or 1Gi")
	}
	if guest.Value()%page.Value() != 0 {
		return field.Invalid(path, memory.Hugepages.PageSize,
			"the guest's memory ("+guest.String()+") must be a multiple of it")
	}
	// Huge pages of a memfd need no mount of hugetlbfs in the Pod, and count against the Pod's limit like others.
	domain.MemoryBacking = &libvirtxml.DomainMemoryBacking{
		MemoryHugePages: &libvirtxml.DomainMemoryHugepages{
			Hugepages: []libvirtxml.DomainMemoryHugepage{{Size: toKiB(&page), Unit: "KiB"}},
		},
		MemorySource: &libvirtxml.DomainMemorySource{Type: "memfd"},
	}
	return nil
}

// toKiB rounds up, so that a guest does not get less than its spec says.
func toKiB(q *resource.Quantity) uint { return uint((q.Value() + kib - 1) / kib) }
