// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"errors"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
)

// VirtualMachine is a virtual machine that outlives its runs: a template for the VMI that runs it, and the strategy
// that defines when.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachines,singular=virtualmachine,scope=Namespaced,shortName=vm;vms,categories=all
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=.status.printableStatus
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=.status.conditions[?(@.type=='Ready')].status
type VirtualMachine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the desired state. Set by the user and never changed by a controller.
	// +kubebuilder:validation:XValidation:rule="!(has(self.running) && has(self.runStrategy))",message="Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy instead"
	// +kubebuilder:validation:XValidation:rule="has(self.running) || has(self.runStrategy)",message="One of Running or RunStrategy must be specified"
	Spec VirtualMachineSpec `json:"spec"`
	// status is the observed state.
	// +optional
	Status VirtualMachineStatus `json:"status,omitempty"`
}

// VirtualMachineList is a list of VirtualMachines.
// +kubebuilder:object:root=true
type VirtualMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachine `json:"items"`
}

// VirtualMachineSpec is when a VM runs and as what.
type VirtualMachineSpec struct {
	// running is the older form of runStrategy: true is Always, false is Halted. One of the two must be set. Set by the
	// user.
	Running *bool `json:"running,omitempty"`
	// runStrategy defines when the VM runs: Always, Halted, Manual, RerunOnFailure, Once or WaitAsReceiver. One of
	// runStrategy and running must be set. Set by the user.
	// +kubebuilder:validation:Enum=Always;Halted;Manual;RerunOnFailure;Once;WaitAsReceiver
	// +optional
	RunStrategy *VirtualMachineRunStrategy `json:"runStrategy,omitempty"`
	// instancetype names the instance type that gives CPU and memory. No default. Set by the user.
	Instancetype *InstancetypeMatcher `json:"instancetype,omitempty"`
	// preference names the preference that fills in devices and firmware. No default. Set by the user.
	Preference *PreferenceMatcher `json:"preference,omitempty"`
	// template is the VMI that is created at each start. Required. Set by the user.
	Template *VirtualMachineInstanceTemplateSpec `json:"template"`
	// dataVolumeTemplates are DataVolumes that are created for the VM and removed with it. No default. Set by the user.
	DataVolumeTemplates []DataVolumeTemplateSpec `json:"dataVolumeTemplates,omitempty"`
	// updateVolumesStrategy defines what a changed volume of a running VM means: Replacement at the next start (the
	// default) or Migration. Set by the user.
	UpdateVolumesStrategy *UpdateVolumesStrategy `json:"updateVolumesStrategy,omitempty"`
}

// VirtualMachineRunStrategy defines when a VM runs.
type VirtualMachineRunStrategy string

// Values of VirtualMachineRunStrategy.
const (
	// RunStrategyUnknown is no strategy; admission refuses it.
	RunStrategyUnknown VirtualMachineRunStrategy = ""
	// RunStrategyAlways runs the VM, and starts it again whenever it ended.
	RunStrategyAlways VirtualMachineRunStrategy = "Always"
	// RunStrategyHalted keeps the VM stopped.
	RunStrategyHalted VirtualMachineRunStrategy = "Halted"
	// RunStrategyManual starts and stops the VM on request only.
	RunStrategyManual VirtualMachineRunStrategy = "Manual"
	// RunStrategyRerunOnFailure runs the VM and starts it again when it failed.
	RunStrategyRerunOnFailure VirtualMachineRunStrategy = "RerunOnFailure"
	// RunStrategyOnce runs the VM one time.
	RunStrategyOnce VirtualMachineRunStrategy = "Once"
	// RunStrategyWaitAsReceiver makes a Pod that waits for a migration from elsewhere.
	RunStrategyWaitAsReceiver VirtualMachineRunStrategy = "WaitAsReceiver"
)

// UpdateVolumesStrategy defines how a changed list of volumes reaches a running VM.
type UpdateVolumesStrategy string

// Values of UpdateVolumesStrategy.
const (
	// UpdateVolumesStrategyMigration copies the volumes while the VM runs.
	UpdateVolumesStrategyMigration UpdateVolumesStrategy = "Migration"
	// UpdateVolumesStrategyReplacement uses the new volumes at the next start.
	UpdateVolumesStrategyReplacement UpdateVolumesStrategy = "Replacement"
)

// VirtualMachineInstanceTemplateSpec is the VMI that a VM creates.
type VirtualMachineInstanceTemplateSpec struct {
	// metadata contains labels and annotations of the VMI. Set by the user.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +nullable
	ObjectMeta metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the spec of the VMI. Set by the user.
	Spec VirtualMachineInstanceSpec `json:"spec,omitempty"`
}

// DataVolumeTemplateSpec is a DataVolume that belongs to a VM.
type DataVolumeTemplateSpec struct {
	// apiVersion is the DataVolume's API version. It is accepted and not used.
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`
	// kind is the DataVolume's kind. It is accepted and not used.
	// +optional
	Kind string `json:"kind,omitempty"`
	// metadata is that of the DataVolume; volumes of the VM refer to it by its name. Set by the user.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +nullable
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the DataVolume's spec. Set by the user.
	Spec cdiv1beta1.DataVolumeSpec `json:"spec"`
	// status is accepted and not used.
	// +nullable
	// +optional
	Status *DataVolumeTemplateDummyStatus `json:"status,omitempty"`
}

// DataVolumeTemplateDummyStatus lets a DataVolume that was read back be written as a template.
type DataVolumeTemplateDummyStatus struct{}

// RunStrategy returns the strategy in force: spec.runStrategy, or that of the older spec.running (true is
// Always, false is Halted). Neither means Halted; both is an error that admission refuses.
func (vm *VirtualMachine) RunStrategy() (VirtualMachineRunStrategy, error) {
	switch {
	case vm.Spec.Running != nil && vm.Spec.RunStrategy != nil:
		return RunStrategyUnknown, errors.New("running and runstrategy are mutually exclusive")
	case vm.Spec.RunStrategy != nil:
		return *vm.Spec.RunStrategy, nil
	case vm.Spec.Running != nil && *vm.Spec.Running:
		return RunStrategyAlways, nil
	default:
		return RunStrategyHalted, nil
	}
}

// SetRunStrategy writes the strategy into the field that the VM uses: spec.runStrategy, or spec.running, which knows
// Always and not Always only.
func (vm *VirtualMachine) SetRunStrategy(strategy VirtualMachineRunStrategy) {
	if vm.Spec.RunStrategy != nil {
		vm.Spec.RunStrategy = &strategy
		return
	}
	always := strategy == RunStrategyAlways
	vm.Spec.Running = &always
}

// MadeUnder returns a request that records the run strategy of the VM.
func (r VirtualMachineStateChangeRequest) MadeUnder(
	strategy VirtualMachineRunStrategy,
) VirtualMachineStateChangeRequest {
	data := map[string]string{}
	maps.Copy(data, r.Data)
	data[RequestDataRunStrategyKey] = string(strategy)
	r.Data = data
	return r
}

// AppliesTo reports whether a request is still to be carried out when the VM has a run strategy. A change of the
// strategy replaces the requests that were made before it. A start with options that was made under Halted sets the
// strategy Always, and is carried out under it.
func (r VirtualMachineStateChangeRequest) AppliesTo(strategy VirtualMachineRunStrategy) bool {
	start := r.Action == StartRequest
	switch made := VirtualMachineRunStrategy(r.Data[RequestDataRunStrategyKey]); made {
	case strategy:
		return true
	case RunStrategyHalted:
		return start && strategy == RunStrategyAlways
	// Another client made it. Under Halted, KubeVirt makes no request for a start without options: it changes the
	// strategy.
	case "":
		return strategy != RunStrategyHalted || !start || len(r.Data) > 0
	default:
		return false
	}
}

// StartRevisionName is the name of the ControllerRevision with the spec that a VM was started with. KubeVirt's.
func StartRevisionName(vm types.UID, generation int64) string {
	return fmt.Sprintf("revision-start-vm-%s-%d", vm, generation)
}

// InstancetypeMatcher names an instance type.
type InstancetypeMatcher struct {
	// name is its name.
	// +optional
	Name string `json:"name,omitempty"`
	// kind is VirtualMachineInstancetype or VirtualMachineClusterInstancetype, the default.
	// +optional
	Kind string `json:"kind,omitempty"`
	// revisionName pins a ControllerRevision.
	// +optional
	RevisionName string `json:"revisionName,omitempty"`
	// inferFromVolume names a volume whose labels name the instance type.
	// +optional
	InferFromVolume string `json:"inferFromVolume,omitempty"`
	// inferFromVolumeFailurePolicy defines what happens when they do not: Reject (the default) or Ignore.
	// +optional
	InferFromVolumeFailurePolicy *InferFromVolumeFailurePolicy `json:"inferFromVolumeFailurePolicy,omitempty"`
}

// PreferenceMatcher names a preference.
type PreferenceMatcher struct {
	// name is its name.
	// +optional
	Name string `json:"name,omitempty"`
	// kind is VirtualMachinePreference or VirtualMachineClusterPreference, the default.
	// +optional
	Kind string `json:"kind,omitempty"`
	// revisionName pins a ControllerRevision.
	// +optional
	RevisionName string `json:"revisionName,omitempty"`
	// inferFromVolume names a volume whose labels name the preference.
	// +optional
	InferFromVolume string `json:"inferFromVolume,omitempty"`
	// inferFromVolumeFailurePolicy defines what happens when they do not: Reject (the default) or Ignore.
	// +optional
	InferFromVolumeFailurePolicy *InferFromVolumeFailurePolicy `json:"inferFromVolumeFailurePolicy,omitempty"`
}

// InferFromVolumeFailurePolicy defines what happens when a volume names no instance type or preference.
type InferFromVolumeFailurePolicy string

// Values of InferFromVolumeFailurePolicy.
const (
	// RejectInferFromVolumeFailure refuses the VM.
	RejectInferFromVolumeFailure InferFromVolumeFailurePolicy = "Reject"
	// IgnoreInferFromVolumeFailure creates the VM without it.
	IgnoreInferFromVolumeFailure InferFromVolumeFailurePolicy = "Ignore"
)

// InstancetypeStatusRef names the instance type or preference that a VM uses.
type InstancetypeStatusRef struct {
	// name is its name.
	Name string `json:"name,omitempty"`
	// kind is its kind.
	Kind string `json:"kind,omitempty"`
	// controllerRevisionRef names the revision that was kept of it.
	ControllerRevisionRef *ControllerRevisionRef `json:"controllerRevisionRef,omitempty"`
	// inferFromVolume is the volume that named it.
	// +optional
	InferFromVolume string `json:"inferFromVolume,omitempty"`
	// inferFromVolumeFailurePolicy is the policy that was in force.
	// +optional
	InferFromVolumeFailurePolicy *InferFromVolumeFailurePolicy `json:"inferFromVolumeFailurePolicy,omitempty"`
}

// ControllerRevisionRef names a ControllerRevision.
type ControllerRevisionRef struct {
	// name is its name.
	Name string `json:"name,omitempty"`
}
