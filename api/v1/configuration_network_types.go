// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
)

// NetworkConfiguration is how VMIs are connected.
type NetworkConfiguration struct {
	// defaultNetworkInterface is the binding of a VMI that names none: bridge (the default) or masquerade.
	NetworkInterface string `json:"defaultNetworkInterface,omitempty"`
	// permitSlirpInterface is not used.
	DeprecatedPermitSlirpInterface *bool `json:"permitSlirpInterface,omitempty"`
	// permitBridgeInterfaceOnPodNetwork allows bridge on the Pod's network. Default: true.
	PermitBridgeInterfaceOnPodNetwork *bool `json:"permitBridgeInterfaceOnPodNetwork,omitempty"`
	// binding are binding plugins by name.
	Binding map[string]InterfaceBindingPlugin `json:"binding,omitempty"`
}

// InterfaceBindingPlugin is a binding that a plugin makes.
type InterfaceBindingPlugin struct {
	// sidecarImage is the image of its container.
	SidecarImage string `json:"sidecarImage,omitempty"`
	// networkAttachmentDefinition is its CNI plugin.
	NetworkAttachmentDefinition string `json:"networkAttachmentDefinition,omitempty"`
	// domainAttachmentType is tap or managedTap.
	DomainAttachmentType DomainAttachmentType `json:"domainAttachmentType,omitempty"`
	// migration is how it migrates. Default: it does not.
	Migration *InterfaceBindingMigration `json:"migration,omitempty"`
	// downwardAPI is device-info to pass the device to the container.
	// +optional
	DownwardAPI NetworkBindingDownwardAPIType `json:"downwardAPI,omitempty"`
	// computeResourceOverhead is added to the launcher's requests and limits.
	// +optional
	ComputeResourceOverhead *ResourceRequirementsWithoutClaims `json:"computeResourceOverhead,omitempty"`
}

// InterfaceBindingMigration is how a binding migrates.
type InterfaceBindingMigration struct {
	// method is link-refresh, or empty.
	Method MigrationMethod `json:"method,omitempty"`
}

// MigrationMethod is how a binding migrates.
type MigrationMethod string

// Values of MigrationMethod.
const (
	// LinkRefresh has the guest request its address again.
	LinkRefresh MigrationMethod = "link-refresh"
)

// DomainAttachmentType is how a binding is connected.
type DomainAttachmentType string

// Values of DomainAttachmentType.
const (
	// Tap is a tap that the plugin makes.
	Tap DomainAttachmentType = "tap"
	// ManagedTap is a tap that we make.
	ManagedTap DomainAttachmentType = "managedTap"
)

// NetworkBindingDownwardAPIType is what is passed to a plugin.
type NetworkBindingDownwardAPIType string

// Values of NetworkBindingDownwardAPIType.
const (
	// DeviceInfo is the device that the network got.
	DeviceInfo NetworkBindingDownwardAPIType = "device-info"
)

// ResourceRequirementsWithoutClaims are requests and limits of a container.
type ResourceRequirementsWithoutClaims struct {
	// limits are what it may use at most.
	// +optional
	Limits corev1.ResourceList `json:"limits,omitempty"`
	// requests are what it needs.
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`
}
