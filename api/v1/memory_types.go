// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

type Memory struct {
	// +optional
	Hugepages *Hugepages `json:"hugepages,omitempty"`
	// +optional
	Guest    *resource.Quantity `json:"guest,omitempty"`
	MaxGuest *resource.Quantity `json:"maxGuest,omitempty"`
	// +optional
	ReservedOverhead *ReservedOverhead `json:"reservedOverhead,omitempty"`
}

type Hugepages struct {
	PageSize string `json:"pageSize,omitempty"`
}

type ReservedOverhead struct {
	// +optional
	AddedOverhead *resource.Quantity `json:"addedOverhead,omitempty"`
	// +optional
	// +kubebuilder:validation:Enum=NotRequired;Required
	MemLock *MemLockRequirement `json:"memLock,omitempty"`
}

type MemLockRequirement string
