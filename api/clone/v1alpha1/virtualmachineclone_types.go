// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/clone/v1beta1"
)

// VirtualMachineClone makes a new VM of a VM or of a snapshot: a snapshot is taken, if there is none, and restored to
// the new VM.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachineclones,singular=virtualmachineclone,scope=Namespaced,shortName=vmclone;vmclones,categories=all
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=.status.phase
// +kubebuilder:printcolumn:name="SourceVirtualMachine",type=string,JSONPath=.spec.source.name
// +kubebuilder:printcolumn:name="TargetVirtualMachine",type=string,JSONPath=.spec.target.name
type VirtualMachineClone struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what to clone, and how. Set by the user. Changes have an effect until the target is created.
	Spec v1beta1.VirtualMachineCloneSpec `json:"spec"`
	// status is its state. Set by virt-controller.
	Status v1beta1.VirtualMachineCloneStatus `json:"status,omitempty"`
}

// VirtualMachineCloneList is a list of VirtualMachineClones.
// +kubebuilder:object:root=true
type VirtualMachineCloneList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineClone `json:"items"`
}
