// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// VirtualMachinePool keeps a number of VMs that are made from one template. The VMs are called <pool>-<number>.
// +kubebuilder:object:root=true
// +kubebuilder:storageversion
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
	Spec VirtualMachinePoolSpec `json:"spec"`
	// status is how many there are. Set by virt-controller.
	Status VirtualMachinePoolStatus `json:"status,omitempty"`
}

// VirtualMachinePoolList is a list of VirtualMachinePools.
// +kubebuilder:object:root=true
type VirtualMachinePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachinePool `json:"items"`
}

// VirtualMachinePoolSpec is how many VMs of what template there should be.
type VirtualMachinePoolSpec struct {
	// replicas is the number of VMs. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`
	// selector chooses the VMs that belong to the pool. The template's labels must match it. Required.
	Selector *metav1.LabelSelector `json:"selector"`
	// virtualMachineTemplate is the VM that the pool makes. Required.
	VirtualMachineTemplate *VirtualMachineTemplateSpec `json:"virtualMachineTemplate"`
	// paused stops the pool from making, deleting and updating VMs. Default: false.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// nameGeneration defines which names in a VM get the VM's number appended.
	// +optional
	NameGeneration *VirtualMachinePoolNameGeneration `json:"nameGeneration,omitempty"`
	// maxUnavailable is how many VMs, as a number or as a part in percent, may be not ready at a time while the pool
	// updates them. Default: 100%.
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// scaleInStrategy defines which VMs are deleted when there are too many. Default: proactive, any of them.
	// +optional
	ScaleInStrategy *VirtualMachinePoolScaleInStrategy `json:"scaleInStrategy,omitempty"`
	// updateStrategy defines how a changed template reaches existing VMs. Default: proactive, by a restart.
	// +optional
	UpdateStrategy *VirtualMachinePoolUpdateStrategy `json:"updateStrategy,omitempty"`
	// autohealing replaces VMs that fail to start. Default: they stay.
	// +optional
	Autohealing *VirtualMachinePoolAutohealingStrategy `json:"autohealing,omitempty"`
}

// VirtualMachineTemplateSpec is the VM that a pool makes.
type VirtualMachineTemplateSpec struct {
	// metadata contains labels and annotations of the VM.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +nullable
	ObjectMeta metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the spec of the VM. Its dataVolumeTemplates get the VM's number appended to their names.
	// +kubebuilder:validation:XValidation:rule="!(has(self.running) && has(self.runStrategy))",message="Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy instead"
	// +kubebuilder:validation:XValidation:rule="has(self.running) || has(self.runStrategy)",message="One of Running or RunStrategy must be specified"
	Spec v1.VirtualMachineSpec `json:"spec,omitempty"`
}

// VirtualMachinePoolNameGeneration defines which names in a VM get the VM's number appended.
type VirtualMachinePoolNameGeneration struct {
	// appendIndexToConfigMapRefs does so with names of ConfigMaps. Default: false.
	AppendIndexToConfigMapRefs *bool `json:"appendIndexToConfigMapRefs,omitempty"`
	// appendIndexToSecretRefs does so with names of Secrets. Default: false.
	AppendIndexToSecretRefs *bool `json:"appendIndexToSecretRefs,omitempty"`
}

// VirtualMachinePoolAutohealingStrategy defines when a VM that fails to start is replaced. One of the limits must be
// reached.
type VirtualMachinePoolAutohealingStrategy struct {
	// startUpFailureThreshold is the number of failed starts in a row. Default: 3.
	// +optional
	// +kubebuilder:validation:Minimum=1
	StartUpFailureThreshold *uint32 `json:"startUpFailureThreshold,omitempty"`
	// minFailingToStartDuration is how long the VM must not have been ready, such as 10m, if it reports an error. Default:
	// 5m.
	// +optional
	MinFailingToStartDuration *metav1.Duration `json:"minFailingToStartDuration,omitempty"`
}

// VirtualMachinePoolStatus is how many VMs of a pool there are.
type VirtualMachinePoolStatus struct {
	// replicas is the number of VMs, including those that are being deleted.
	Replicas int32 `json:"replicas,omitempty"`
	// readyReplicas is the number of VMs that can take traffic.
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// conditions are ReplicaFailure and ReplicaPaused, each only while it is true.
	// +listType=atomic
	Conditions []VirtualMachinePoolCondition `json:"conditions,omitempty"`
	// labelSelector is spec.selector as text, for an autoscaler.
	LabelSelector string `json:"labelSelector,omitempty"`
}

// VirtualMachinePoolConditionType is a type of condition of a pool.
type VirtualMachinePoolConditionType string

// Values of VirtualMachinePoolConditionType.
const (
	// VirtualMachinePoolReplicaFailure is True while VMs cannot be made or deleted.
	VirtualMachinePoolReplicaFailure VirtualMachinePoolConditionType = "ReplicaFailure"
	// VirtualMachinePoolReplicaPaused is True while the pool is paused. VMs can then be made and deleted by hand.
	VirtualMachinePoolReplicaPaused VirtualMachinePoolConditionType = "ReplicaPaused"
	// VirtualMachinePoolReconciling is not KubeVirt's: the VMs are not yet those that the spec wants, or not ready. It is
	// there only while it is True, and kstatus reads it.
	VirtualMachinePoolReconciling VirtualMachinePoolConditionType = "Reconciling"
)

// VirtualMachinePoolCondition is one aspect of the state of a pool.
type VirtualMachinePoolCondition struct {
	// type is the condition's type: ReplicaFailure or ReplicaPaused.
	Type VirtualMachinePoolConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastProbeTime is not kept up to date.
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// lastTransitionTime is when status last changed.
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// reason is the reason in one word, for programs.
	Reason string `json:"reason,omitempty"`
	// message is the explanation and the remedy, for people.
	Message string `json:"message,omitempty"`
}
