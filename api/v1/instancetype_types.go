// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

type InstancetypeMatcher struct {
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	Kind string `json:"kind,omitempty"`
	// +optional
	RevisionName string `json:"revisionName,omitempty"`
	// +optional
	InferFromVolume string `json:"inferFromVolume,omitempty"`
	// +optional
	InferFromVolumeFailurePolicy *InferFromVolumeFailurePolicy `json:"inferFromVolumeFailurePolicy,omitempty"`
}

type PreferenceMatcher struct {
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	Kind string `json:"kind,omitempty"`
	// +optional
	RevisionName string `json:"revisionName,omitempty"`
	// +optional
	InferFromVolume string `json:"inferFromVolume,omitempty"`
	// +optional
	InferFromVolumeFailurePolicy *InferFromVolumeFailurePolicy `json:"inferFromVolumeFailurePolicy,omitempty"`
}

type InferFromVolumeFailurePolicy string

// Values of InferFromVolumeFailurePolicy.
const (
	RejectInferFromVolumeFailure InferFromVolumeFailurePolicy = "Reject"
	IgnoreInferFromVolumeFailure InferFromVolumeFailurePolicy = "Ignore"
)

type InstancetypeStatusRef struct {
	Name                  string                 `json:"name,omitempty"`
	Kind                  string                 `json:"kind,omitempty"`
	ControllerRevisionRef *ControllerRevisionRef `json:"controllerRevisionRef,omitempty"`
	// +optional
	InferFromVolume string `json:"inferFromVolume,omitempty"`
	// +optional
	InferFromVolumeFailurePolicy *InferFromVolumeFailurePolicy `json:"inferFromVolumeFailurePolicy,omitempty"`
}

type ControllerRevisionRef struct {
	Name string `json:"name,omitempty"`
}
