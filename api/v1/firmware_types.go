// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

type Firmware struct {
	UUID types.UID `json:"uuid,omitempty"`
	// +optional
	Bootloader *Bootloader `json:"bootloader,omitempty"`
	Serial     string      `json:"serial,omitempty"`
	// +optional
	KernelBoot *KernelBoot `json:"kernelBoot,omitempty"`
	ACPI       *ACPI       `json:"acpi,omitempty"`
}

type Bootloader struct {
	// +optional
	BIOS *BIOS `json:"bios,omitempty"`
	// +optional
	EFI *EFI `json:"efi,omitempty"`
}

type BIOS struct {
	// +optional
	UseSerial *bool `json:"useSerial,omitempty"`
}

type EFI struct {
	// +optional
	SecureBoot *bool `json:"secureBoot,omitempty"`
	// +optional
	Persistent *bool `json:"persistent,omitempty"`
}

type KernelBoot struct {
	KernelArgs string               `json:"kernelArgs,omitempty"`
	Container  *KernelBootContainer `json:"container,omitempty"`
}

type KernelBootContainer struct {
	Image string `json:"image"`
	// +optional
	ImagePullSecret string `json:"imagePullSecret,omitempty"`
	// +optional
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// +optional
	KernelPath string `json:"kernelPath,omitempty"`
	// +optional
	InitrdPath string `json:"initrdPath,omitempty"`
}

type ACPI struct {
	SlicNameRef string `json:"slicNameRef,omitempty"`
	MsdmNameRef string `json:"msdmNameRef,omitempty"`
}
