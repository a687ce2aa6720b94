// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/pool/v1beta1"
)

// VirtualMachinePool keeps a number of VMs that are made from one template. The VMs are called <pool>-<number>.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.labelSelector
// +kubebuilder:resource:path=virtualmachinepools,singular=virtualmachinepool,scope=Namespaced,shortName=vmpool;vmpools,categories=all
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=.spec.replicas,description="VirtualMachines that there should be"
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=.status.replicas,description="VirtualMachines that there are, including those that are being deleted"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=.status.readyReplicas,description="VirtualMachines that can take traffic"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp
type VirtualMachinePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is how many VMs of what template there should be. Set by the user; replicas also by an autoscaler.
	Spec v1beta1.VirtualMachinePoolSpec `json:"spec"`
	// status is how many there are. Set by virt-controller.
	Status v1beta1.VirtualMachinePoolStatus `json:"status,omitempty"`
}

// VirtualMachinePoolList is a list of VirtualMachinePools.
// +kubebuilder:object:root=true
type VirtualMachinePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachinePool `json:"items"`
}
