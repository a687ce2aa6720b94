// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Firmware is how a guest boots and how it is identified.
type Firmware struct {
	// uuid is the machine's UUID. Default: one that follows from the VM's name, random for a VMI without a VM.
	UUID types.UID `json:"uuid,omitempty"`
	// bootloader is BIOS (the default) or EFI.
	// +optional
	Bootloader *Bootloader `json:"bootloader,omitempty"`
	// serial is the machine's serial number. Default: none.
	Serial string `json:"serial,omitempty"`
	// kernelBoot boots a kernel from an image instead of a disk's boot loader.
	// +optional
	KernelBoot *KernelBoot `json:"kernelBoot,omitempty"`
	// acpi adds ACPI tables.
	ACPI *ACPI `json:"acpi,omitempty"`
}

// Bootloader is the firmware that boots the guest. One member is set.
type Bootloader struct {
	// bios boots by BIOS, the default.
	// +optional
	BIOS *BIOS `json:"bios,omitempty"`
	// efi boots by EFI.
	// +optional
	EFI *EFI `json:"efi,omitempty"`
}

// BIOS is the BIOS's options.
type BIOS struct {
	// useSerial writes what the BIOS prints to the serial console. Default: false.
	// +optional
	UseSerial *bool `json:"useSerial,omitempty"`
}

// EFI is EFI's options.
type EFI struct {
	// secureBoot starts signed loaders only; needs features.smm. Default: true.
	// +optional
	SecureBoot *bool `json:"secureBoot,omitempty"`
	// persistent keeps EFI variables across starts. Default: false.
	// +optional
	Persistent *bool `json:"persistent,omitempty"`
}

// KernelBoot boots a kernel from an image.
type KernelBoot struct {
	// kernelArgs is the kernel's command line.
	KernelArgs string `json:"kernelArgs,omitempty"`
	// container is the image with kernel and initrd.
	Container *KernelBootContainer `json:"container,omitempty"`
}

// KernelBootContainer is an image with a kernel and an initrd. One of the paths is set.
type KernelBootContainer struct {
	// image is the image.
	Image string `json:"image"`
	// imagePullSecret names the Secret with the registry's credentials.
	// +optional
	ImagePullSecret string `json:"imagePullSecret,omitempty"`
	// imagePullPolicy is Always, Never or IfNotPresent. Default: Always for the tag latest or none, otherwise
	// IfNotPresent.
	// +optional
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// kernelPath is the kernel's path in the image.
	// +optional
	KernelPath string `json:"kernelPath,omitempty"`
	// initrdPath is the initrd's path in the image.
	// +optional
	InitrdPath string `json:"initrdPath,omitempty"`
}

// ACPI adds tables from Secrets.
type ACPI struct {
	// slicNameRef names the volume of the Secret with a SLIC table.
	SlicNameRef string `json:"slicNameRef,omitempty"`
	// msdmNameRef names the volume of the Secret with an MSDM table.
	MsdmNameRef string `json:"msdmNameRef,omitempty"`
}
