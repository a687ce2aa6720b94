// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// Devices are a guest's devices. All are set by the user.
type Devices struct {
	// useVirtioTransitional uses virtio devices that old guests know too. Default: false.
	UseVirtioTransitional *bool `json:"useVirtioTransitional,omitempty"`
	// disableHotplug leaves out the slots for devices that come later. Default: false.
	DisableHotplug bool `json:"disableHotplug,omitempty"`
	// disks are disks, CD-ROMs and LUNs. Each goes with a volume of the same name.
	// +kubebuilder:validation:MaxItems:=256
	Disks []Disk `json:"disks,omitempty"`
	// watchdog acts when the guest hangs. Default: none.
	Watchdog *Watchdog `json:"watchdog,omitempty"`
	// interfaces are network interfaces. Each goes with a network of the same name.
	// +kubebuilder:validation:MaxItems:=256
	Interfaces []Interface `json:"interfaces,omitempty"`
	// inputs are input devices. Default: none but what autoattachInputDevice adds.
	Inputs []Input `json:"inputs,omitempty"`
	// autoattachPodInterface connects a VMI without interfaces to the Pod's network. Default: true.
	AutoattachPodInterface *bool `json:"autoattachPodInterface,omitempty"`
	// autoattachGraphicsDevice adds a display, which VNC shows. Default: true.
	AutoattachGraphicsDevice *bool `json:"autoattachGraphicsDevice,omitempty"`
	// autoattachSerialConsole adds a serial console. Default: true.
	AutoattachSerialConsole *bool `json:"autoattachSerialConsole,omitempty"`
	// logSerialConsole writes the serial console to the launcher Pod's log. Default: the cluster's, true.
	LogSerialConsole *bool `json:"logSerialConsole,omitempty"`
	// autoattachMemBalloon adds a balloon, which reports memory in use. Default: true.
	// +optional
	AutoattachMemBalloon *bool `json:"autoattachMemBalloon,omitempty"`
	// autoattachInputDevice adds a tablet. Default: false.
	// +optional
	AutoattachInputDevice *bool `json:"autoattachInputDevice,omitempty"`
	// autoattachVSOCK adds VSOCK. Default: false.
	AutoattachVSOCK *bool `json:"autoattachVSOCK,omitempty"`
	// rng gives the guest randomness from the node. Default: none.
	// +optional
	Rng *Rng `json:"rng,omitempty"`
	// blockMultiQueue gives virtio disks a queue for each CPU. Default: false.
	// +optional
	BlockMultiQueue *bool `json:"blockMultiQueue,omitempty"`
	// networkInterfaceMultiqueue gives virtio interfaces a queue for each CPU. Default: false.
	// +optional
	NetworkInterfaceMultiQueue *bool `json:"networkInterfaceMultiqueue,omitempty"`
	// gpus are GPUs of the node.
	// +optional
	// +listType=atomic
	GPUs []GPU `json:"gpus,omitempty"`
	// downwardMetrics shows metrics of the node to the guest.
	// +optional
	DownwardMetrics *DownwardMetrics `json:"downwardMetrics,omitempty"`
	// panicDevices report a panic of the guest's kernel.
	// +optional
	// +listType=atomic
	PanicDevices []PanicDevice `json:"panicDevices,omitempty"`
	// filesystems are directories that the guest mounts.
	// +optional
	// +listType=atomic
	Filesystems []Filesystem `json:"filesystems,omitempty"`
	// hostDevices are other devices of the node.
	// +optional
	// +listType=atomic
	HostDevices []HostDevice `json:"hostDevices,omitempty"`
	// clientPassthrough lets a client pass USB devices into the guest.
	// +optional
	ClientPassthrough *ClientPassthroughDevices `json:"clientPassthrough,omitempty"`
	// sound is a sound card. Default: none.
	// +optional
	Sound *SoundDevice `json:"sound,omitempty"`
	// tpm is a trusted platform module. Default: none.
	// +optional
	TPM *TPMDevice `json:"tpm,omitempty"`
	// video is the display's type.
	// +optional
	Video *VideoDevice `json:"video,omitempty"`
}

// Watchdog acts when a guest hangs.
type Watchdog struct {
	// name is its name.
	Name           string `json:"name"`
	WatchdogDevice `json:",inline"`
}

// WatchdogDevice is the kind of a watchdog. One member is set.
type WatchdogDevice struct {
	// i6300esb is Intel's 6300ESB, for amd64 and arm64.
	// +optional
	I6300ESB *I6300ESBWatchdog `json:"i6300esb,omitempty"`
	// diag288 is s390x's.
	// +optional
	Diag288 *Diag288Watchdog `json:"diag288,omitempty"`
}

// WatchdogAction is what a watchdog does.
type WatchdogAction string

// Values of WatchdogAction.
const (
	// WatchdogActionPoweroff turns the guest off.
	WatchdogActionPoweroff WatchdogAction = "poweroff"
	// WatchdogActionReset resets the guest.
	WatchdogActionReset WatchdogAction = "reset"
	// WatchdogActionShutdown requests the guest to shut down.
	WatchdogActionShutdown WatchdogAction = "shutdown"
)

// I6300ESBWatchdog is Intel's 6300ESB.
type I6300ESBWatchdog struct {
	// action is poweroff, reset or shutdown. Default: reset.
	Action WatchdogAction `json:"action,omitempty"`
}

// Diag288Watchdog is s390x's watchdog.
type Diag288Watchdog struct {
	// action is poweroff, reset or shutdown. Default: reset.
	Action WatchdogAction `json:"action,omitempty"`
}

// Input is an input device.
type Input struct {
	// bus is usb or virtio. Default: usb.
	Bus InputBus `json:"bus,omitempty"`
	// type is tablet or keyboard.
	Type InputType `json:"type"`
	// name is its name.
	Name string `json:"name"`
}

// InputBus is what an input device is connected to.
type InputBus string

// Values of InputBus.
const (
	// InputBusUSB is USB.
	InputBusUSB InputBus = "usb"
	// InputBusVirtio is virtio.
	InputBusVirtio InputBus = "virtio"
)

// InputType is the kind of an input device.
type InputType string

// Values of InputType.
const (
	// InputTypeTablet is a tablet, which reports absolute positions.
	InputTypeTablet InputType = "tablet"
	// InputTypeKeyboard is a keyboard.
	InputTypeKeyboard InputType = "keyboard"
)

// Rng gives the guest randomness from the node.
type Rng struct{}

// SoundDevice is a sound card.
type SoundDevice struct {
	// name is its name.
	Name string `json:"name"`
	// model is ich9 (the default) or ac97.
	// +optional
	Model string `json:"model,omitempty"`
}

// TPMDevice is a trusted platform module.
type TPMDevice struct {
	// enabled is false to leave it out although a preference requests one. Default: true.
	Enabled *bool `json:"enabled,omitempty"`
	// persistent keeps its state across starts. Default: false.
	Persistent *bool `json:"persistent,omitempty"`
}

// VideoDevice is a display.
type VideoDevice struct {
	// type is virtio, vga, bochs or ramfb. Default: bochs with EFI and vga with BIOS on amd64, otherwise virtio.
	// +optional
	Type string `json:"type,omitempty"`
}

// PanicDevice reports a panic of the guest's kernel.
type PanicDevice struct {
	// model is hyperv, isa or pvpanic. Default: what fits the machine.
	// +optional
	Model *PanicDeviceModel `json:"model,omitempty"`
}

// PanicDeviceModel is the kind of a panic device.
type PanicDeviceModel string

// Values of PanicDeviceModel.
const (
	// Hyperv is Hyper-V's.
	Hyperv PanicDeviceModel = "hyperv"
	// Isa is on the ISA bus.
	Isa PanicDeviceModel = "isa"
	// Pvpanic is on the PCI bus.
	Pvpanic PanicDeviceModel = "pvpanic"
)

// ClientPassthroughDevices lets a client pass up to four USB devices into the guest.
type ClientPassthroughDevices struct{}

// DownwardMetrics shows metrics of the node to the guest.
type DownwardMetrics struct{}

// Filesystem is a directory that the guest mounts.
type Filesystem struct {
	// name is the volume's name, and the tag in the guest.
	Name string `json:"name"`
	// virtiofs shares it by virtiofs.
	Virtiofs *FilesystemVirtiofs `json:"virtiofs"`
}

// FilesystemVirtiofs has no options.
type FilesystemVirtiofs struct{}

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
