// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

type GPU struct {
	Name              string `json:"name"`
	DeviceName        string `json:"deviceName,omitempty"`
	*ClaimRequest     `json:",inline"`
	VirtualGPUOptions *VGPUOptions `json:"virtualGPUOptions,omitempty"`
	// +optional
	Tag string `json:"tag,omitempty"`
}

type HostDevice struct {
	Name          string `json:"name"`
	DeviceName    string `json:"deviceName,omitempty"`
	*ClaimRequest `json:",inline"`
	// +optional
	Tag string `json:"tag,omitempty"`
}

type ClaimRequest struct {
	ClaimName   string `json:"claimName,omitempty"`
	RequestName string `json:"requestName,omitempty"`
}

type VGPUOptions struct {
	Display *VGPUDisplayOptions `json:"display,omitempty"`
}

type VGPUDisplayOptions struct {
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// +optional
	RamFB *FeatureState `json:"ramFB,omitempty"`
}
