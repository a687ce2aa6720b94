// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

type PermittedHostDevices struct {
	// +listType=atomic
	PciHostDevices []PciHostDevice `json:"pciHostDevices,omitempty"`
	// +listType=atomic
	MediatedDevices []MediatedHostDevice `json:"mediatedDevices,omitempty"`
	// +listType=atomic
	USB []USBHostDevice `json:"usb,omitempty"`
}

type PciHostDevice struct {
	PCIVendorSelector        string `json:"pciVendorSelector"`
	ResourceName             string `json:"resourceName"`
	ExternalResourceProvider bool   `json:"externalResourceProvider,omitempty"`
}

type USBHostDevice struct {
	ResourceName string `json:"resourceName"`
	// +listType=atomic
	Selectors                []USBSelector `json:"selectors,omitempty"`
	ExternalResourceProvider bool          `json:"externalResourceProvider,omitempty"`
}

type USBSelector struct {
	Vendor  string `json:"vendor"`
	Product string `json:"product"`
}

type MediatedHostDevice struct {
	MDEVNameSelector         string `json:"mdevNameSelector"`
	ResourceName             string `json:"resourceName"`
	ExternalResourceProvider bool   `json:"externalResourceProvider,omitempty"`
}

type MediatedDevicesConfiguration struct {
	// +optional
	// +listType=atomic
	MediatedDevicesTypes []string `json:"mediatedDevicesTypes,omitempty"`
	// +optional
	// +listType=atomic
	MediatedDeviceTypes []string `json:"mediatedDeviceTypes,omitempty"`
	// +optional
	// +listType=atomic
	NodeMediatedDeviceTypes []NodeMediatedDeviceTypesConfig `json:"nodeMediatedDeviceTypes,omitempty"`
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
}

// +k8s:openapi-gen=true
type NodeMediatedDeviceTypesConfig struct {
	NodeSelector map[string]string `json:"nodeSelector"`
	// +optional
	// +listType=atomic
	MediatedDevicesTypes []string `json:"mediatedDevicesTypes,omitempty"`
	// +optional
	// +listType=atomic
	MediatedDeviceTypes []string `json:"mediatedDeviceTypes"`
}
