// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import corev1 "k8s.io/api/core/v1"

// PermittedHostDevices are devices of nodes that VMIs may use.
type PermittedHostDevices struct {
	// pciHostDevices are PCI devices.
	// +listType=atomic
	PciHostDevices []PciHostDevice `json:"pciHostDevices,omitempty"`
	// mediatedDevices are mediated devices.
	// +listType=atomic
	MediatedDevices []MediatedHostDevice `json:"mediatedDevices,omitempty"`
	// usb are USB devices.
	// +listType=atomic
	USB []USBHostDevice `json:"usb,omitempty"`
}

// PciHostDevice is a kind of PCI device.
type PciHostDevice struct {
	// pciVendorSelector is vendor and device, such as 10DE:1EB8.
	PCIVendorSelector string `json:"pciVendorSelector"`
	// resourceName is the resource by which VMIs request it.
	ResourceName string `json:"resourceName"`
	// externalResourceProvider is true if another device plugin offers it. Default: false.
	ExternalResourceProvider bool `json:"externalResourceProvider,omitempty"`
}

// USBHostDevice is a kind of USB device.
type USBHostDevice struct {
	// resourceName is the resource by which VMIs request it.
	ResourceName string `json:"resourceName"`
	// selectors choose devices that are given out together.
	// +listType=atomic
	Selectors []USBSelector `json:"selectors,omitempty"`
	// externalResourceProvider is true if another device plugin offers it. Default: false.
	ExternalResourceProvider bool `json:"externalResourceProvider,omitempty"`
}

// USBSelector chooses a USB device.
type USBSelector struct {
	// vendor is the vendor's number.
	Vendor string `json:"vendor"`
	// product is the product's number.
	Product string `json:"product"`
}

// MediatedHostDevice is a kind of mediated device.
type MediatedHostDevice struct {
	// mdevNameSelector is the type's name, such as GRID T4-1Q.
	MDEVNameSelector string `json:"mdevNameSelector"`
	// resourceName is the resource by which VMIs request it.
	ResourceName string `json:"resourceName"`
	// externalResourceProvider is true if another device plugin offers it. Default: false.
	ExternalResourceProvider bool `json:"externalResourceProvider,omitempty"`
}

// MediatedDevicesConfiguration are mediated devices to make on nodes.
type MediatedDevicesConfiguration struct {
	// mediatedDevicesTypes is the older form of mediatedDeviceTypes.
	// +optional
	// +listType=atomic
	MediatedDevicesTypes []string `json:"mediatedDevicesTypes,omitempty"`
	// mediatedDeviceTypes are the types to make.
	// +optional
	// +listType=atomic
	MediatedDeviceTypes []string `json:"mediatedDeviceTypes,omitempty"`
	// nodeMediatedDeviceTypes are the types to make on some nodes.
	// +optional
	// +listType=atomic
	NodeMediatedDeviceTypes []NodeMediatedDeviceTypesConfig `json:"nodeMediatedDeviceTypes,omitempty"`
	// enabled is false to make none. Default: true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
}

// NodeMediatedDeviceTypesConfig are the types to make on some nodes.
// +k8s:openapi-gen=true
type NodeMediatedDeviceTypesConfig struct {
	// nodeSelector chooses the nodes.
	NodeSelector map[string]string `json:"nodeSelector"`
	// mediatedDevicesTypes is the older form of mediatedDeviceTypes.
	// +optional
	// +listType=atomic
	MediatedDevicesTypes []string `json:"mediatedDevicesTypes,omitempty"`
	// mediatedDeviceTypes are the types.
	// +optional
	// +listType=atomic
	MediatedDeviceTypes []string `json:"mediatedDeviceTypes"`
}

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
