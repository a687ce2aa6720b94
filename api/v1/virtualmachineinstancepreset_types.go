// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VirtualMachineInstancePreset is the older form of instance types and preferences: a piece of a domain that is merged
// into new VMIs by their labels. Deprecated in KubeVirt, which removes it in v2: use VirtualMachineInstancetype and
// VirtualMachinePreference.
// +kubebuilder:object:root=true
// +kubebuilder:deprecatedversion:warning="kubevirt.io/v1 VirtualMachineInstancePreset is deprecated and will be removed in v2: use VirtualMachineInstancetype and VirtualMachinePreference of instancetype.kubevirt.io"
// +kubebuilder:resource:path=virtualmachineinstancepresets,singular=virtualmachineinstancepreset,scope=Namespaced,shortName=vmipreset;vmipresets,categories=all
type VirtualMachineInstancePreset struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what is merged, and into which VMIs.
	Spec VirtualMachineInstancePresetSpec `json:"spec,omitempty"`
}

// VirtualMachineInstancePresetList is a list of VirtualMachineInstancePresets.
// +kubebuilder:object:root=true
type VirtualMachineInstancePresetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineInstancePreset `json:"items"`
}

// VirtualMachineInstancePresetSpec is what is merged, and into which VMIs. Set by the user.
type VirtualMachineInstancePresetSpec struct {
	// selector picks VMIs by their labels. Required. Set by the user.
	Selector metav1.LabelSelector `json:"selector"`
	// domain is merged into the VMI's spec.domain, which wins where both have a value. No default. Set by the user.
	Domain *DomainSpec `json:"domain,omitempty"`
}
