// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

// Memory is a guest's memory.
type Memory struct {
	// hugepages backs memory by huge pages. Default: ordinary pages.
	// +optional
	Hugepages *Hugepages `json:"hugepages,omitempty"`
	// guest is what the guest sees. Default: the memory of resources.
	// +optional
	Guest *resource.Quantity `json:"guest,omitempty"`
	// maxGuest is up to what memory can be added while the guest runs. Default: none can.
	MaxGuest *resource.Quantity `json:"maxGuest,omitempty"`
	// reservedOverhead adds to the memory that is set aside beyond the guest's.
	// +optional
	ReservedOverhead *ReservedOverhead `json:"reservedOverhead,omitempty"`
}

// Hugepages backs memory by huge pages.
type Hugepages struct {
	// pageSize is the size of a page, such as 2Mi or 1Gi, which the node must offer.
	PageSize string `json:"pageSize,omitempty"`
}

// ReservedOverhead is memory beyond the guest's.
type ReservedOverhead struct {
	// addedOverhead is added to the computed overhead. Default: 0.
	// +optional
	AddedOverhead *resource.Quantity `json:"addedOverhead,omitempty"`
	// memLock defines whether all of it must be locked in memory: Required or NotRequired.
	// +optional
	// +kubebuilder:validation:Enum=NotRequired;Required
	MemLock *MemLockRequirement `json:"memLock,omitempty"`
}

// MemLockRequirement defines whether memory must be locked.
type MemLockRequirement string

// Values of MemLockRequirement.
const (
	// MemLockRequired: all memory, the overhead included, is locked.
	MemLockRequired MemLockRequirement = "Required"
	// MemLockNotRequired: nothing is locked for the sake of the overhead.
	MemLockNotRequired MemLockRequirement = "NotRequired"
)
