// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

type Devices struct {
	UseVirtioTransitional *bool `json:"useVirtioTransitional,omitempty"`
	DisableHotplug        bool  `json:"disableHotplug,omitempty"`
	// +kubebuilder:validation:MaxItems:=256
	Disks    []Disk    `json:"disks,omitempty"`
	Watchdog *Watchdog `json:"watchdog,omitempty"`
	// +kubebuilder:validation:MaxItems:=256
	Interfaces               []Interface `json:"interfaces,omitempty"`
	Inputs                   []Input     `json:"inputs,omitempty"`
	AutoattachPodInterface   *bool       `json:"autoattachPodInterface,omitempty"`
	AutoattachGraphicsDevice *bool       `json:"autoattachGraphicsDevice,omitempty"`
	AutoattachSerialConsole  *bool       `json:"autoattachSerialConsole,omitempty"`
	LogSerialConsole         *bool       `json:"logSerialConsole,omitempty"`
	// +optional
	AutoattachMemBalloon *bool `json:"autoattachMemBalloon,omitempty"`
	// +optional
	AutoattachInputDevice *bool `json:"autoattachInputDevice,omitempty"`
	AutoattachVSOCK       *bool `json:"autoattachVSOCK,omitempty"`
	// +optional
	Rng *Rng `json:"rng,omitempty"`
	// +optional
	BlockMultiQueue *bool `json:"blockMultiQueue,omitempty"`
	// +optional
	NetworkInterfaceMultiQueue *bool `json:"networkInterfaceMultiqueue,omitempty"`
	// +optional
	// +listType=atomic
	GPUs []GPU `json:"gpus,omitempty"`
	// +optional
	DownwardMetrics *DownwardMetrics `json:"downwardMetrics,omitempty"`
	// +optional
	// +listType=atomic
	PanicDevices []PanicDevice `json:"panicDevices,omitempty"`
	// +optional
	// +listType=atomic
	Filesystems []Filesystem `json:"filesystems,omitempty"`
	// +optional
	// +listType=atomic
	HostDevices []HostDevice `json:"hostDevices,omitempty"`
	// +optional
	ClientPassthrough *ClientPassthroughDevices `json:"clientPassthrough,omitempty"`
	// +optional
	Sound *SoundDevice `json:"sound,omitempty"`
	// +optional
	TPM *TPMDevice `json:"tpm,omitempty"`
	// +optional
	Video *VideoDevice `json:"video,omitempty"`
}

type Watchdog struct {
	Name           string `json:"name"`
	WatchdogDevice `json:",inline"`
}

type WatchdogDevice struct {
	// +optional
	I6300ESB *I6300ESBWatchdog `json:"i6300esb,omitempty"`
	// +optional
	Diag288 *Diag288Watchdog `json:"diag288,omitempty"`
}

type WatchdogAction string

// Values of WatchdogAction.
const (
	WatchdogActionPoweroff WatchdogAction = "poweroff"
	WatchdogActionReset    WatchdogAction = "reset"
	WatchdogActionShutdown WatchdogAction = "shutdown"
)

type I6300ESBWatchdog struct {
	Action WatchdogAction `json:"action,omitempty"`
}

type Diag288Watchdog struct {
	Action WatchdogAction `json:"action,omitempty"`
}

type Input struct {
	Bus  InputBus  `json:"bus,omitempty"`
	Type InputType `json:"type"`
	Name string    `json:"name"`
}

type InputBus string

// Values of InputBus.
const (
	InputBusUSB    InputBus = "usb"
	InputBusVirtio InputBus = "virtio"
)

type InputType string

// Values of InputType.
const (
	InputTypeTablet   InputType = "tablet"
	InputTypeKeyboard InputType = "keyboard"
)

type Rng struct{}

type SoundDevice struct {
	Name string `json:"name"`
	// +optional
	Model string `json:"model,omitempty"`
}

type TPMDevice struct {
	Enabled    *bool `json:"enabled,omitempty"`
	Persistent *bool `json:"persistent,omitempty"`
}

type VideoDevice struct {
	// +optional
	Type string `json:"type,omitempty"`
}

type PanicDevice struct {
	// +optional
	Model *PanicDeviceModel `json:"model,omitempty"`
}

type PanicDeviceModel string

// Values of PanicDeviceModel.
const (
	Hyperv  PanicDeviceModel = "hyperv"
	Isa     PanicDeviceModel = "isa"
	Pvpanic PanicDeviceModel = "pvpanic"
)

type ClientPassthroughDevices struct{}

type DownwardMetrics struct{}

type Filesystem struct {
	Name     string              `json:"name"`
	Virtiofs *FilesystemVirtiofs `json:"virtiofs"`
}

type FilesystemVirtiofs struct{}
