// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KubeVirtStatus is the observed state of the installation.
type KubeVirtStatus struct {
	// phase is Deploying, Deployed, Deleting or Deleted.
	Phase KubeVirtPhase `json:"phase,omitempty"`
	// conditions are the conditions of the installation.
	Conditions []KubeVirtCondition `json:"conditions,omitempty"`
	// operatorVersion is the manager's version.
	OperatorVersion string `json:"operatorVersion,omitempty"`
	// targetKubeVirtRegistry is the registry that is being rolled out.
	TargetKubeVirtRegistry string `json:"targetKubeVirtRegistry,omitempty"`
	// targetKubeVirtVersion is the version that is being rolled out.
	TargetKubeVirtVersion string `json:"targetKubeVirtVersion,omitempty"`
	// targetDeploymentConfig is what is being rolled out, as JSON.
	TargetDeploymentConfig string `json:"targetDeploymentConfig,omitempty"`
	// targetDeploymentID identifies what is being rolled out.
	TargetDeploymentID string `json:"targetDeploymentID,omitempty"`
	// observedKubeVirtRegistry is the registry that was rolled out.
	ObservedKubeVirtRegistry string `json:"observedKubeVirtRegistry,omitempty"`
	// observedKubeVirtVersion is the version that was rolled out.
	ObservedKubeVirtVersion string `json:"observedKubeVirtVersion,omitempty"`
	// observedDeploymentConfig is what was rolled out, as JSON.
	ObservedDeploymentConfig string `json:"observedDeploymentConfig,omitempty"`
	// observedDeploymentID identifies what was rolled out.
	ObservedDeploymentID string `json:"observedDeploymentID,omitempty"`
	// outdatedVirtualMachineInstanceWorkloads is the number of guests with an older launcher.
	OutdatedVirtualMachineInstanceWorkloads *int `json:"outdatedVirtualMachineInstanceWorkloads,omitempty"`
	// observedGeneration is the generation that was acted on.
	ObservedGeneration *int64 `json:"observedGeneration,omitempty"`
	// defaultArchitecture is the architecture of a VMI that names none.
	DefaultArchitecture string `json:"defaultArchitecture,omitempty"`
	// generations are the generations of what was installed.
	// +listType=atomic
	Generations []GenerationStatus `json:"generations,omitempty"`
	// synchronizationAddresses are where other clusters reach this one for migrations.
	// +optional
	// +listType=atomic
	SynchronizationAddresses []string `json:"synchronizationAddresses,omitempty"`
}

// KubeVirtPhase is the state of the installation.
type KubeVirtPhase string

// Values of KubeVirtPhase.
const (
	// KubeVirtPhaseDeploying: it is being installed.
	KubeVirtPhaseDeploying KubeVirtPhase = "Deploying"
	// KubeVirtPhaseDeployed: it is installed.
	KubeVirtPhaseDeployed KubeVirtPhase = "Deployed"
	// KubeVirtPhaseDeleting: it is being removed.
	KubeVirtPhaseDeleting KubeVirtPhase = "Deleting"
	// KubeVirtPhaseDeleted: it is removed.
	KubeVirtPhaseDeleted KubeVirtPhase = "Deleted"
)

// KubeVirtCondition is a condition of the installation.
type KubeVirtCondition struct {
	// type is the condition's type.
	Type KubeVirtConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastProbeTime is when the condition was last checked.
	// +optional
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// lastTransitionTime is when status last changed.
	// +optional
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// reason is the reason in one word, for programs.
	Reason string `json:"reason,omitempty"`
	// message is the explanation for people.
	Message string `json:"message,omitempty"`
}

// KubeVirtConditionType is a type of condition of the installation.
type KubeVirtConditionType string

// Values of KubeVirtConditionType.
const (
	// KubeVirtConditionSynchronized is there and False only when something is wrong with the object.
	KubeVirtConditionSynchronized KubeVirtConditionType = "Synchronized"
	// KubeVirtConditionCreated: every object was created.
	KubeVirtConditionCreated KubeVirtConditionType = "Created"
	// KubeVirtConditionAvailable: what was installed works.
	KubeVirtConditionAvailable KubeVirtConditionType = "Available"
	// KubeVirtConditionProgressing: a change is being rolled out.
	KubeVirtConditionProgressing KubeVirtConditionType = "Progressing"
	// KubeVirtConditionDegraded: something does not work as it should.
	KubeVirtConditionDegraded KubeVirtConditionType = "Degraded"
	// KubeVirtConditionWorkloadsMigratable is not KubeVirt's: every running guest can be migrated to another launcher.
	// False names some that cannot, and why. Set by virt-controller; it is absent while no guest runs.
	KubeVirtConditionWorkloadsMigratable KubeVirtConditionType = "WorkloadsMigratable"
	// KubeVirtConditionCommonInstancetypesDeployed is not KubeVirt's. It is there and False only when a common instance
	// type or preference is missing. Set by virt-controller.
	KubeVirtConditionCommonInstancetypesDeployed KubeVirtConditionType = "CommonInstancetypesDeployed"
	// KubeVirtConditionFieldsIgnored is not KubeVirt's: the spec sets fields or feature gates that have no effect. The
	// message names them, and why. It is absent while there are none.
	KubeVirtConditionFieldsIgnored KubeVirtConditionType = "FieldsIgnored"
	// KubeVirtConditionWaiting is not KubeVirt's: KubeVirt's operator is installed, and virt-controller changes nothing
	// meanwhile. It is there only while it is True. The message says what was found.
	KubeVirtConditionWaiting KubeVirtConditionType = "Waiting"
	// KubeVirtConditionReconciling is not KubeVirt's: the installation is not yet what the spec says. It is there only
	// while it is True, and kstatus reads it.
	KubeVirtConditionReconciling KubeVirtConditionType = "Reconciling"
	// KubeVirtConditionStalled is not KubeVirt's: the installation cannot become what the spec says without a change. It
	// is there only while it is True, and kstatus reads it.
	KubeVirtConditionStalled KubeVirtConditionType = "Stalled"
)

// GenerationStatus is the generation of an object that was installed.
type GenerationStatus struct {
	// group is its API group.
	Group string `json:"group"`
	// resource is its resource.
	Resource string `json:"resource"`
	// namespace is its namespace.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name is its name.
	Name string `json:"name"`
	// lastGeneration is the generation that was written.
	LastGeneration int64 `json:"lastGeneration"`
	// hash is a hash of what was written, for objects without a generation.
	// +optional
	Hash string `json:"hash,omitempty"`
}
