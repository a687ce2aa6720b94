// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VirtualMachineInstanceReplicaSet keeps a number of equal VMIs running. They are stateless: one that ended is replaced
// by a new one under another name.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.labelSelector
// +kubebuilder:resource:path=virtualmachineinstancereplicasets,singular=virtualmachineinstancereplicaset,scope=Namespaced,shortName=vmirs;vmirss,categories=all
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=.spec.replicas,description="How many VMIs are wanted"
// +kubebuilder:printcolumn:name="Current",type=integer,JSONPath=.status.replicas,description="How many VMIs there are that have not ended"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=.status.readyReplicas,description="How many VMIs take requests"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp
type VirtualMachineInstanceReplicaSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the desired state.
	Spec VirtualMachineInstanceReplicaSetSpec `json:"spec"`
	// status is the observed state. Set by virt-controller.
	// +nullable
	Status VirtualMachineInstanceReplicaSetStatus `json:"status,omitempty"`
}

// VirtualMachineInstanceReplicaSetList is a list of VirtualMachineInstanceReplicaSets.
// +kubebuilder:object:root=true
type VirtualMachineInstanceReplicaSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineInstanceReplicaSet `json:"items"`
}

// VirtualMachineInstanceReplicaSetSpec is the number of VMIs, their selector and their template. Set by the user.
type VirtualMachineInstanceReplicaSetSpec struct {
	// replicas is how many VMIs there should be. Default: 1. Set by the user or an autoscaler,
	// which takes a missing number for 0 and then does nothing.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// selector picks the VMIs that belong to the set by their labels; those of the template must match. Required. Set by
	// the user.
	Selector *metav1.LabelSelector `json:"selector"`
	// template is the VMI that is created for each replica. Required. Set by the user.
	Template *VirtualMachineInstanceTemplateSpec `json:"template"`
	// paused keeps the controller from creating and deleting VMIs. Default: false. Set by the user.
	// +optional
	Paused bool `json:"paused,omitempty"`
}

// VirtualMachineInstanceReplicaSetStatus is what became of the set. Set by virt-controller.
type VirtualMachineInstanceReplicaSetStatus struct {
	// replicas is how many VMIs of the set have not ended. Set by virt-controller.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// readyReplicas is how many of them have the condition Ready. Set by virt-controller.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// conditions report whether VMIs cannot be created or deleted (ReplicaFailure), and whether the set is paused
	// (ReplicaPaused). Set by virt-controller.
	Conditions []VirtualMachineInstanceReplicaSetCondition `json:"conditions,omitempty"`
	// labelSelector is spec.selector in the form that the scale subresource returns to autoscalers. Set by
	// virt-controller.
	LabelSelector string `json:"labelSelector,omitempty"`
}

// VirtualMachineInstanceReplicaSetCondition is a condition of a replica set.
type VirtualMachineInstanceReplicaSetCondition struct {
	// type is the condition's type.
	Type VirtualMachineInstanceReplicaSetConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastProbeTime is when the condition was last checked.
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// lastTransitionTime is when status last changed.
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// reason is the reason in one word, for programs.
	Reason string `json:"reason,omitempty"`
	// message is the explanation for people.
	Message string `json:"message,omitempty"`
}

// VirtualMachineInstanceReplicaSetConditionType is a type of condition of a replica set.
type VirtualMachineInstanceReplicaSetConditionType string

// Conditions of a VirtualMachineInstanceReplicaSet.
const (
	// VirtualMachineInstanceReplicaSetReplicaFailure: VMIs could not be created or deleted; the message has the API
	// server's response.
	VirtualMachineInstanceReplicaSetReplicaFailure VirtualMachineInstanceReplicaSetConditionType = "ReplicaFailure"
	// VirtualMachineInstanceReplicaSetReplicaPaused: spec.paused was seen, from now on VMIs may be added and removed by
	// hand.
	VirtualMachineInstanceReplicaSetReplicaPaused VirtualMachineInstanceReplicaSetConditionType = "ReplicaPaused"
	// VirtualMachineInstanceReplicaSetReconciling is not KubeVirt's: the VMIs are not yet those that the spec wants, or
	// not ready. It is there only while it is True, and kstatus reads it.
	VirtualMachineInstanceReplicaSetReconciling VirtualMachineInstanceReplicaSetConditionType = "Reconciling"
)
