// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// GPU is a GPU of the node.
type GPU struct {
	// name is its name.
	Name string `json:"name"`
	// deviceName is the resource by which a device plugin offers it.
	DeviceName    string `json:"deviceName,omitempty"`
	*ClaimRequest `json:",inline"`
	// virtualGPUOptions are options of a virtual GPU.
	VirtualGPUOptions *VGPUOptions `json:"virtualGPUOptions,omitempty"`
	// tag is passed to the guest in the config drive.
	// +optional
	Tag string `json:"tag,omitempty"`
}

// HostDevice is a device of the node.
type HostDevice struct {
	// name is its name.
	Name string `json:"name"`
	// deviceName is the resource by which a device plugin offers it.
	DeviceName    string `json:"deviceName,omitempty"`
	*ClaimRequest `json:",inline"`
	// tag is passed to the guest in the config drive.
	// +optional
	Tag string `json:"tag,omitempty"`
}

// ClaimRequest is a device of a resource claim.
type ClaimRequest struct {
	// claimName names an entry of spec.resourceClaims.
	ClaimName string `json:"claimName,omitempty"`
	// requestName names a request of that claim.
	RequestName string `json:"requestName,omitempty"`
}

// VGPUOptions are options of a virtual GPU.
type VGPUOptions struct {
	// display is the virtual GPU's display.
	Display *VGPUDisplayOptions `json:"display,omitempty"`
}

// VGPUDisplayOptions is a virtual GPU's display.
type VGPUDisplayOptions struct {
	// enabled is false to leave it out. Default: true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// ramFB shows the boot before a driver is there. Default: on.
	// +optional
	RamFB *FeatureState `json:"ramFB,omitempty"`
}
