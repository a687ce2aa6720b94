// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// Disk is a disk, a CD-ROM or a LUN.
type Disk struct {
	// name is its name and that of its volume. A DNS label.
	Name       string `json:"name"`
	DiskDevice `json:",inline"`
	// bootOrder is its place among the devices to boot from, from 1 on. No two devices share one. Default: not booted
	// from if any device has one.
	// +optional
	BootOrder *uint `json:"bootOrder,omitempty"`
	// serial is its serial number. Default: none.
	// +optional
	Serial string `json:"serial,omitempty"`
	// dedicatedIOThread gives it an I/O thread of its own; virtio only. Default: false.
	// +optional
	DedicatedIOThread *bool `json:"dedicatedIOThread,omitempty"`
	// cache is none, writethrough or writeback. Default: none if the storage takes direct I/O, otherwise writethrough.
	// +optional
	Cache DriverCache `json:"cache,omitempty"`
	// io is native or threads. Default: what fits the storage.
	// +optional
	IO DriverIO `json:"io,omitempty"`
	// tag is passed to the guest in the config drive.
	// +optional
	Tag string `json:"tag,omitempty"`
	// blockSize is the size of its blocks. Default: 512 bytes.
	// +optional
	BlockSize *BlockSize `json:"blockSize,omitempty"`
	// shareable lets several VMs write to it. Default: false.
	// +optional
	Shareable *bool `json:"shareable,omitempty"`
	// errorPolicy defines what an I/O error does: stop (the default), ignore, report or enospace.
	// +optional
	ErrorPolicy *DiskErrorPolicy `json:"errorPolicy,omitempty"`
	// changedBlockTracking tracks changed blocks, for incremental backup. Default: false.
	// +optional
	ChangedBlockTracking *bool `json:"changedBlockTracking,omitempty"`
}

// DiskDevice is the kind of device. One member is set. Default: disk.
type DiskDevice struct {
	// disk is a hard disk.
	Disk *DiskTarget `json:"disk,omitempty"`
	// lun is a SCSI device that the guest sends commands to.
	LUN *LunTarget `json:"lun,omitempty"`
	// cdrom is a CD-ROM drive.
	CDRom *CDRomTarget `json:"cdrom,omitempty"`
}

// DiskTarget is a hard disk.
type DiskTarget struct {
	// bus is virtio, sata, scsi or usb. Default: sata on amd64, otherwise virtio.
	Bus DiskBus `json:"bus,omitempty"`
	// readonly keeps the guest from writing. Default: false.
	ReadOnly bool `json:"readonly,omitempty"`
	// pciAddress is its PCI address, such as 0000:81:01.0; virtio only. Default: the next free one.
	// +optional
	PciAddress string `json:"pciAddress,omitempty"`
}

// LunTarget is a SCSI device that the guest sends commands to.
type LunTarget struct {
	// bus is scsi.
	Bus DiskBus `json:"bus,omitempty"`
	// readonly keeps the guest from writing. Default: false.
	ReadOnly bool `json:"readonly,omitempty"`
	// reservation lets the guest use persistent reservations. Default: false.
	Reservation bool `json:"reservation,omitempty"`
}

// CDRomTarget is a CD-ROM drive.
type CDRomTarget struct {
	// bus is sata, scsi or usb. Default: sata on amd64, otherwise scsi.
	Bus DiskBus `json:"bus,omitempty"`
	// readonly keeps the guest from writing. Default: true.
	ReadOnly *bool `json:"readonly,omitempty"`
	// tray is open or closed. Default: closed.
	// +optional
	Tray TrayState `json:"tray,omitempty"`
}

// DiskBus is what a disk is connected to.
type DiskBus string

// Values of DiskBus.
const (
	// DiskBusSCSI is a virtio SCSI controller.
	DiskBusSCSI DiskBus = "scsi"
	// DiskBusSATA is a SATA controller.
	DiskBusSATA DiskBus = "sata"
	// DiskBusVirtio is virtio.
	DiskBusVirtio DiskBus = VirtIO
	// DiskBusUSB is USB.
	DiskBusUSB DiskBus = "usb"
)

// TrayState is the state of the tray.
type TrayState string

// Values of TrayState.
const (
	// TrayStateOpen is open.
	TrayStateOpen TrayState = "open"
	// TrayStateClosed is closed.
	TrayStateClosed TrayState = "closed"
)

// DriverCache is how the node caches a disk.
type DriverCache string

// Values of DriverCache.
const (
	// CacheNone passes by the node's cache.
	CacheNone DriverCache = "none"
	// CacheWriteThrough reads from the node's cache and writes through it.
	CacheWriteThrough DriverCache = "writethrough"
	// CacheWriteBack writes to the node's cache first.
	CacheWriteBack DriverCache = "writeback"
)

// DriverIO is how QEMU reads and writes.
type DriverIO string

// Values of DriverIO.
const (
	// IOThreads uses a pool of threads.
	IOThreads DriverIO = "threads"
	// IONative uses the kernel's asynchronous I/O.
	IONative DriverIO = "native"
)

// DiskErrorPolicy defines what an I/O error does.
type DiskErrorPolicy string

// Values of DiskErrorPolicy.
const (
	// DiskErrorPolicyStop pauses the guest.
	DiskErrorPolicyStop DiskErrorPolicy = "stop"
	// DiskErrorPolicyIgnore does nothing.
	DiskErrorPolicyIgnore DiskErrorPolicy = "ignore"
	// DiskErrorPolicyReport reports it to the guest.
	DiskErrorPolicyReport DiskErrorPolicy = "report"
	// DiskErrorPolicyEnospace pauses the guest when the storage is full, and reports other errors to it.
	DiskErrorPolicyEnospace DiskErrorPolicy = "enospace"
)

// BlockSize is the size of a disk's blocks. One member is set.
type BlockSize struct {
	// custom gives the sizes.
	Custom *CustomBlockSize `json:"custom,omitempty"`
	// matchVolume takes the sizes of the volume.
	MatchVolume *FeatureState `json:"matchVolume,omitempty"`
}

// CustomBlockSize is block sizes in bytes, powers of 2 from 512 to 2097152.
type CustomBlockSize struct {
	// logical is the smallest unit that can be addressed.
	Logical uint `json:"logical,omitempty"`
	// physical is the smallest unit that can be written at once.
	Physical uint `json:"physical,omitempty"`
	// discardGranularity is the smallest unit that can be discarded; a multiple of logical.
	DiscardGranularity *uint `json:"discardGranularity,omitempty"`
}
