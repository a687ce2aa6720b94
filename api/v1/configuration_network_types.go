// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
)

type NetworkConfiguration struct {
	NetworkInterface                  string                            `json:"defaultNetworkInterface,omitempty"`
	DeprecatedPermitSlirpInterface    *bool                             `json:"permitSlirpInterface,omitempty"`
	PermitBridgeInterfaceOnPodNetwork *bool                             `json:"permitBridgeInterfaceOnPodNetwork,omitempty"`
	Binding                           map[string]InterfaceBindingPlugin `json:"binding,omitempty"`
}

type InterfaceBindingPlugin struct {
	SidecarImage                string                     `json:"sidecarImage,omitempty"`
	NetworkAttachmentDefinition string                     `json:"networkAttachmentDefinition,omitempty"`
	DomainAttachmentType        DomainAttachmentType       `json:"domainAttachmentType,omitempty"`
	Migration                   *InterfaceBindingMigration `json:"migration,omitempty"`
	// +optional
	DownwardAPI NetworkBindingDownwardAPIType `json:"downwardAPI,omitempty"`
	// +optional
	ComputeResourceOverhead *ResourceRequirementsWithoutClaims `json:"computeResourceOverhead,omitempty"`
}

type InterfaceBindingMigration struct {
	Method MigrationMethod `json:"method,omitempty"`
}

type MigrationMethod string

// Values of MigrationMethod.
const (
	LinkRefresh MigrationMethod = "link-refresh"
)

type DomainAttachmentType string

// Values of DomainAttachmentType.
const (
	Tap        DomainAttachmentType = "tap"
	ManagedTap DomainAttachmentType = "managedTap"
)

type NetworkBindingDownwardAPIType string

// Values of NetworkBindingDownwardAPIType.
const (
	DeviceInfo NetworkBindingDownwardAPIType = "device-info"
)

type ResourceRequirementsWithoutClaims struct {
	// +optional
	Limits corev1.ResourceList `json:"limits,omitempty"`
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`
}
