// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VirtualMachinePoolScaleInStrategy defines which VMs are deleted when there are too many. One member is set.
type VirtualMachinePoolScaleInStrategy struct {
	// unmanaged deletes none: the user does.
	Unmanaged *VirtualMachinePoolUnmanagedStrategy `json:"unmanaged,omitempty"`
	// opportunistic waits until another client deletes the surplus, and does not replace it.
	// +optional
	Opportunistic *VirtualMachinePoolOpportunisticScaleInStrategy `json:"opportunistic,omitempty"`
	// proactive deletes the surplus, running or not. The default.
	// +optional
	Proactive *VirtualMachinePoolProactiveScaleInStrategy `json:"proactive,omitempty"`
}

// VirtualMachinePoolOpportunisticScaleInStrategy are options of opportunistic.
type VirtualMachinePoolOpportunisticScaleInStrategy struct {
	// statePreservation defines what is left of a deleted VM: nothing with Disabled (the default), its claims with Offline
	// and with Online. The next VM of the same number reuses them.
	// +optional
	// +kubebuilder:validation:Enum=Disabled;Offline;Online
	StatePreservation *StatePreservation `json:"statePreservation,omitempty"`
}

// VirtualMachinePoolProactiveScaleInStrategy are options of proactive.
type VirtualMachinePoolProactiveScaleInStrategy struct {
	// selectionPolicy defines which VMs are deleted first. Default: any.
	// +optional
	SelectionPolicy *VirtualMachinePoolSelectionPolicy `json:"selectionPolicy,omitempty"`
	// statePreservation defines what is left of a deleted VM: nothing with Disabled (the default), its claims with Offline
	// and with Online. The next VM of the same number reuses them.
	// +optional
	// +kubebuilder:validation:Enum=Disabled;Offline;Online
	StatePreservation *StatePreservation `json:"statePreservation,omitempty"`
}

// StatePreservation defines what is left of a VM that a pool deletes.
type StatePreservation string

// Values of StatePreservation.
const (
	// StatePreservationDisabled leaves nothing.
	StatePreservationDisabled StatePreservation = "Disabled"
	// StatePreservationOffline leaves the claims.
	StatePreservationOffline StatePreservation = "Offline"
	// StatePreservationOnline acts as StatePreservationOffline.
	StatePreservationOnline StatePreservation = "Online"
)

// VirtualMachinePoolSelectionPolicy defines which VMs come first.
type VirtualMachinePoolSelectionPolicy struct {
	// sortPolicy is the order: AscendingOrder or DescendingOrder of the VMs' numbers, Newest or Oldest first, or Random
	// (the default).
	// +optional
	// +kubebuilder:validation:Enum=AscendingOrder;DescendingOrder;Newest;Oldest;Random
	SortPolicy *VirtualMachinePoolSortPolicy `json:"sortPolicy,omitempty"`
	// selectors choose the VMs that are considered at all. Default: all.
	// +optional
	Selectors *VirtualMachinePoolSelectors `json:"selectors,omitempty"`
}

// VirtualMachinePoolSortPolicy is an order of VMs.
type VirtualMachinePoolSortPolicy string

// Values of VirtualMachinePoolSortPolicy.
const (
	// VirtualMachinePoolSortPolicyAscendingOrder puts the lowest number first.
	VirtualMachinePoolSortPolicyAscendingOrder VirtualMachinePoolSortPolicy = "AscendingOrder"
	// VirtualMachinePoolSortPolicyDescendingOrder puts the highest number first.
	VirtualMachinePoolSortPolicyDescendingOrder VirtualMachinePoolSortPolicy = "DescendingOrder"
	// VirtualMachinePoolSortPolicyNewest puts the VM that was made last first.
	VirtualMachinePoolSortPolicyNewest VirtualMachinePoolSortPolicy = "Newest"
	// VirtualMachinePoolSortPolicyOldest puts the VM that was made first first.
	VirtualMachinePoolSortPolicyOldest VirtualMachinePoolSortPolicy = "Oldest"
	// VirtualMachinePoolSortPolicyRandom has no order.
	VirtualMachinePoolSortPolicyRandom VirtualMachinePoolSortPolicy = "Random"
)

// VirtualMachinePoolSelectors choose VMs. If both are set, both must match.
type VirtualMachinePoolSelectors struct {
	// labelSelector chooses by the labels in spec.template of the VM.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// nodeSelectorRequirementMatcher chooses by the nodeSelector in spec.template of the VM. All requirements must be met.
	// +optional
	NodeSelectorRequirementMatcher *[]corev1.NodeSelectorRequirement `json:"nodeSelectorRequirementMatcher,omitempty"`
}

// VirtualMachinePoolUpdateStrategy defines how a changed template reaches existing VMs. One member is set.
type VirtualMachinePoolUpdateStrategy struct {
	// unmanaged changes none: the user does.
	// +optional
	Unmanaged *VirtualMachinePoolUnmanagedStrategy `json:"unmanaged,omitempty"`
	// opportunistic changes the VM, which runs on as it is until it is next started.
	// +optional
	Opportunistic *VirtualMachineOpportunisticUpdateStrategy `json:"opportunistic,omitempty"`
	// proactive changes the VM and restarts it. The default.
	// +optional
	Proactive *VirtualMachinePoolProactiveUpdateStrategy `json:"proactive,omitempty"`
}

// VirtualMachinePoolUnmanagedStrategy has no options.
type VirtualMachinePoolUnmanagedStrategy struct{}

// VirtualMachineOpportunisticUpdateStrategy has no options.
type VirtualMachineOpportunisticUpdateStrategy struct{}

// VirtualMachinePoolProactiveUpdateStrategy are options of proactive.
type VirtualMachinePoolProactiveUpdateStrategy struct {
	// selectionPolicy defines which VMs are updated first. Default: any.
	// +optional
	SelectionPolicy *VirtualMachinePoolSelectionPolicy `json:"selectionPolicy,omitempty"`
}
