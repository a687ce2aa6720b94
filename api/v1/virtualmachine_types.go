// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachines,singular=virtualmachine,scope=Namespaced,shortName=vm;vms,categories=all
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=.status.printableStatus
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=.status.conditions[?(@.type=='Ready')].status
type VirtualMachine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              VirtualMachineSpec `json:"spec"`
	// +optional
	Status VirtualMachineStatus `json:"status,omitempty"`
}

// +kubebuilder:object:root=true
type VirtualMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachine `json:"items"`
}

// +kubebuilder:validation:XValidation:rule="!(has(self.running) && has(self.runStrategy))",message="Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy instead"
// +kubebuilder:validation:XValidation:rule="has(self.running) || has(self.runStrategy)",message="One of Running or RunStrategy must be specified"
type VirtualMachineSpec struct {
	Running *bool `json:"running,omitempty"`
	// +kubebuilder:validation:Enum=Always;Halted;Manual;RerunOnFailure;Once;WaitAsReceiver
	// +optional
	RunStrategy           *VirtualMachineRunStrategy          `json:"runStrategy,omitempty"`
	Instancetype          *InstancetypeMatcher                `json:"instancetype,omitempty"`
	Preference            *PreferenceMatcher                  `json:"preference,omitempty"`
	Template              *VirtualMachineInstanceTemplateSpec `json:"template"`
	DataVolumeTemplates   []DataVolumeTemplateSpec            `json:"dataVolumeTemplates,omitempty"`
	UpdateVolumesStrategy *UpdateVolumesStrategy              `json:"updateVolumesStrategy,omitempty"`
}

type VirtualMachineRunStrategy string

// Values of VirtualMachineRunStrategy.
const (
	RunStrategyUnknown        VirtualMachineRunStrategy = ""
	RunStrategyAlways         VirtualMachineRunStrategy = "Always"
	RunStrategyHalted         VirtualMachineRunStrategy = "Halted"
	RunStrategyManual         VirtualMachineRunStrategy = "Manual"
	RunStrategyRerunOnFailure VirtualMachineRunStrategy = "RerunOnFailure"
	RunStrategyOnce           VirtualMachineRunStrategy = "Once"
	RunStrategyWaitAsReceiver VirtualMachineRunStrategy = "WaitAsReceiver"
)

type UpdateVolumesStrategy string

// Values of UpdateVolumesStrategy.
const (
	UpdateVolumesStrategyMigration   UpdateVolumesStrategy = "Migration"
	UpdateVolumesStrategyReplacement UpdateVolumesStrategy = "Replacement"
)

type VirtualMachineInstanceTemplateSpec struct {
	// +kubebuilder:pruning:PreserveUnknownFields
	// +nullable
	ObjectMeta metav1.ObjectMeta          `json:"metadata,omitempty"`
	Spec       VirtualMachineInstanceSpec `json:"spec,omitempty"`
}

type DataVolumeTemplateSpec struct {
	// apiVersion is the DataVolume's API version. It is accepted and not used.
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`
	// kind is the DataVolume's kind. It is accepted and not used.
	// +optional
	Kind string `json:"kind,omitempty"`
	// +kubebuilder:pruning:PreserveUnknownFields
	// +nullable
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              DataVolumeSpec `json:"spec"`
	// +nullable
	// +optional
	Status *DataVolumeTemplateDummyStatus `json:"status,omitempty"`
}

type DataVolumeTemplateDummyStatus struct{}
