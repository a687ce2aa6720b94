// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

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
