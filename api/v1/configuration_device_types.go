// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

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
