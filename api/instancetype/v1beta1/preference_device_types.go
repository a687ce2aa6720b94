// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	v1 "github.com/vireo-project/vireo/api/v1"
)

// DevicePreferences fills in values for devices that a VM does not set. Unless a comment says otherwise, a preference
// applies to each device of its kind without a setting of its own.
type DevicePreferences struct {
	// preferredAutoattachGraphicsDevice defines whether a VM without a setting of its own gets a graphics device.
	// +optional
	PreferredAutoattachGraphicsDevice *bool `json:"preferredAutoattachGraphicsDevice,omitempty"`
	// preferredAutoattachMemBalloon defines whether a VM without a setting of its own gets a memory balloon.
	// +optional
	PreferredAutoattachMemBalloon *bool `json:"preferredAutoattachMemBalloon,omitempty"`
	// preferredAutoattachPodInterface defines whether a VM without a setting of its own and without interfaces gets one on
	// the Pod's network.
	// +optional
	PreferredAutoattachPodInterface *bool `json:"preferredAutoattachPodInterface,omitempty"`
	// preferredAutoattachSerialConsole defines whether a VM without a setting of its own gets a serial console.
	// +optional
	PreferredAutoattachSerialConsole *bool `json:"preferredAutoattachSerialConsole,omitempty"`
	// preferredAutoattachInputDevice defines whether a VM without a setting of its own and without inputs gets a tablet.
	// +optional
	PreferredAutoattachInputDevice *bool `json:"preferredAutoattachInputDevice,omitempty"`
	// preferredDisableHotplug defines whether disks can be added to the running guest of a VM without a setting of its
	// own.
	// +optional
	PreferredDisableHotplug *bool `json:"preferredDisableHotplug,omitempty"`
	// preferredVirtualGPUOptions are the options of GPUs that have none.
	// +optional
	PreferredVirtualGPUOptions *v1.VGPUOptions `json:"preferredVirtualGPUOptions,omitempty"`
	// preferredSoundModel is the model of a sound device: ich9 or ac97.
	// +optional
	PreferredSoundModel string `json:"preferredSoundModel,omitempty"`
	// preferredUseVirtioTransitional defines whether virtio devices of a VM without a setting of its own also support the
	// protocol before virtio 1.0, for old guests.
	// +optional
	PreferredUseVirtioTransitional *bool `json:"preferredUseVirtioTransitional,omitempty"`
	// preferredInputBus is the bus of inputs: usb or virtio.
	// +optional
	PreferredInputBus v1.InputBus `json:"preferredInputBus,omitempty"`
	// preferredInputType is the type of inputs: tablet or keyboard.
	// +optional
	PreferredInputType v1.InputType `json:"preferredInputType,omitempty"`
	// preferredDiskBus is the bus of disks: virtio, sata, scsi or usb.
	// +optional
	PreferredDiskBus v1.DiskBus `json:"preferredDiskBus,omitempty"`
	// preferredLunBus is the bus of LUNs: virtio, sata or scsi.
	// +optional
	PreferredLunBus v1.DiskBus `json:"preferredLunBus,omitempty"`
	// preferredCdromBus is the bus of CD-ROMs: sata, scsi or usb.
	// +optional
	PreferredCdromBus v1.DiskBus `json:"preferredCdromBus,omitempty"`
	// preferredDiskDedicatedIoThread gives each disk on the bus virtio a thread of its own.
	// +optional
	PreferredDiskDedicatedIoThread *bool `json:"preferredDiskDedicatedIoThread,omitempty"`
	// preferredDiskCache is the cache mode of disks: none, writethrough or writeback.
	// +optional
	PreferredDiskCache v1.DriverCache `json:"preferredDiskCache,omitempty"`
	// preferredDiskIO is the I/O mode of disks: native, threads or default.
	// +optional
	PreferredDiskIO v1.DriverIO `json:"preferredDiskIO,omitempty"`
	// preferredDiskBlockSize is the block size that disks show to the guest.
	// +optional
	PreferredDiskBlockSize *v1.BlockSize `json:"preferredDiskBlockSize,omitempty"`
	// preferredInterfaceModel is the model of network interfaces, such as virtio or e1000e.
	// +optional
	PreferredInterfaceModel string `json:"preferredInterfaceModel,omitempty"`
	// preferredRng gives a VM without one a random number generator.
	// +optional
	PreferredRng *v1.Rng `json:"preferredRng,omitempty"`
	// preferredBlockMultiQueue defines whether virtio disks of a VM without a setting of its own have one queue for each
	// CPU.
	// +optional
	PreferredBlockMultiQueue *bool `json:"preferredBlockMultiQueue,omitempty"`
	// preferredNetworkInterfaceMultiQueue defines whether virtio network interfaces of a VM without a setting of its own
	// have one queue for each CPU.
	// +optional
	PreferredNetworkInterfaceMultiQueue *bool `json:"preferredNetworkInterfaceMultiQueue,omitempty"`
	// preferredTPM gives a VM without one this TPM.
	// +optional
	PreferredTPM *v1.TPMDevice `json:"preferredTPM,omitempty"`
	// preferredInterfaceMasquerade is how interfaces on the Pod's network that name no binding are connected.
	// +optional
	PreferredInterfaceMasquerade *v1.InterfaceMasquerade `json:"preferredInterfaceMasquerade,omitempty"`
	// preferredPanicDeviceModel is the model of panic devices: hyperv, isa or pvpanic.
	// +optional
	PreferredPanicDeviceModel *v1.PanicDeviceModel `json:"preferredPanicDeviceModel,omitempty"`
	// preferredVideoType is the type of the video device, such as virtio, vga or bochs.
	// +optional
	PreferredVideoType *string `json:"preferredVideoType,omitempty"`
}
