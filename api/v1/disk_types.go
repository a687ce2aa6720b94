// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

type Disk struct {
	Name       string `json:"name"`
	DiskDevice `json:",inline"`
	// +optional
	BootOrder *uint `json:"bootOrder,omitempty"`
	// +optional
	Serial string `json:"serial,omitempty"`
	// +optional
	DedicatedIOThread *bool `json:"dedicatedIOThread,omitempty"`
	// +optional
	Cache DriverCache `json:"cache,omitempty"`
	// +optional
	IO DriverIO `json:"io,omitempty"`
	// +optional
	Tag string `json:"tag,omitempty"`
	// +optional
	BlockSize *BlockSize `json:"blockSize,omitempty"`
	// +optional
	Shareable *bool `json:"shareable,omitempty"`
	// +optional
	ErrorPolicy *DiskErrorPolicy `json:"errorPolicy,omitempty"`
	// +optional
	ChangedBlockTracking *bool `json:"changedBlockTracking,omitempty"`
}

type DiskDevice struct {
	Disk  *DiskTarget  `json:"disk,omitempty"`
	LUN   *LunTarget   `json:"lun,omitempty"`
	CDRom *CDRomTarget `json:"cdrom,omitempty"`
}

type DiskTarget struct {
	Bus      DiskBus `json:"bus,omitempty"`
	ReadOnly bool    `json:"readonly,omitempty"`
	// +optional
	PciAddress string `json:"pciAddress,omitempty"`
}

type LunTarget struct {
	Bus         DiskBus `json:"bus,omitempty"`
	ReadOnly    bool    `json:"readonly,omitempty"`
	Reservation bool    `json:"reservation,omitempty"`
}

type CDRomTarget struct {
	Bus      DiskBus `json:"bus,omitempty"`
	ReadOnly *bool   `json:"readonly,omitempty"`
	// +optional
	Tray TrayState `json:"tray,omitempty"`
}

type DiskBus string

// Values of DiskBus.
const (
	DiskBusSCSI   DiskBus = "scsi"
	DiskBusSATA   DiskBus = "sata"
	DiskBusVirtio DiskBus = VirtIO
	DiskBusUSB    DiskBus = "usb"
)

type TrayState string

// Values of TrayState.
const (
	TrayStateOpen   TrayState = "open"
	TrayStateClosed TrayState = "closed"
)

type DriverCache string

// Values of DriverCache.
const (
	CacheNone         DriverCache = "none"
	CacheWriteThrough DriverCache = "writethrough"
	CacheWriteBack    DriverCache = "writeback"
)

type DriverIO string

// Values of DriverIO.
const (
	IOThreads DriverIO = "threads"
	IONative  DriverIO = "native"
)

type DiskErrorPolicy string

// Values of DiskErrorPolicy.
const (
	DiskErrorPolicyStop     DiskErrorPolicy = "stop"
	DiskErrorPolicyIgnore   DiskErrorPolicy = "ignore"
	DiskErrorPolicyReport   DiskErrorPolicy = "report"
	DiskErrorPolicyEnospace DiskErrorPolicy = "enospace"
)

type BlockSize struct {
	Custom      *CustomBlockSize `json:"custom,omitempty"`
	MatchVolume *FeatureState    `json:"matchVolume,omitempty"`
}

type CustomBlockSize struct {
	Logical            uint  `json:"logical,omitempty"`
	Physical           uint  `json:"physical,omitempty"`
	DiscardGranularity *uint `json:"discardGranularity,omitempty"`
}
