// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

// Facts is the input of Build about the node and the launcher Pod. The agent collects it. It is plain data, which can
// be dumped and replayed. Paths are those inside the launcher Pod.
type Facts struct {
	// Emulation reports whether QEMU emulates the CPU in software, without KVM.
	Emulation bool `json:"emulation"`
	// Arch is the guest's architecture as Kubernetes names it; empty means amd64.
	Arch string `json:"arch,omitempty"`
	// Disks are the prepared volumes by volume name.
	Disks map[string]DiskFact `json:"disks,omitempty"`
	// Unplugged are the names of volumes that the Pod does not have now, and that can be plugged into the running guest.
	// The domain has no disk for them, and an empty drive for a CD-ROM.
	Unplugged map[string]bool `json:"unplugged,omitempty"`
	// Interfaces are the prepared taps by the name of the VMI's interface.
	Interfaces map[string]InterfaceFact `json:"interfaces,omitempty"`
	// KernelBoot is set if the guest boots a kernel from an image.
	KernelBoot *KernelBootFact `json:"kernelBoot,omitempty"`
	// ACPI are the prepared ACPI tables.
	ACPI ACPIFact `json:"acpi,omitzero"`
	// SMBIOS has the SMBIOS fields of the cluster's configuration.
	SMBIOS SMBIOSFact `json:"smbios"`
	// MemBalloonStatsPeriod is the interval of memory statistics in seconds; 0 means none.
	MemBalloonStatsPeriod uint `json:"memBalloonStatsPeriod,omitempty"`
	// VhostNet reports whether the Pod has /dev/vhost-net.
	VhostNet bool `json:"vhostNet,omitempty"`
	// CPUs are the CPUs of the node that the Pod may run on, in ascending order. Only guests with dedicated CPUs need
	// them; the kubelet has then assigned them to this Pod exclusively.
	CPUs []uint `json:"cpus,omitempty"`
	// NUMACells is the node's CPU topology, by which dedicated CPUs are chosen.
	NUMACells []NUMACellFact `json:"numaCells,omitempty"`
}

// NUMACellFact is a NUMA cell of the node.
type NUMACellFact struct {
	// ID is the cell's ID on the node.
	ID uint `json:"id"`
	// CPUs are the CPUs of the cell.
	CPUs []CPUFact `json:"cpus,omitempty"`
}

// CPUFact is a logical CPU of the node.
type CPUFact struct {
	// ID is the CPU's ID on the node.
	ID uint `json:"id"`
	// Siblings are the CPUs of the same core, including this one. Empty means that the CPU is a core.
	Siblings []uint `json:"siblings,omitempty"`
}

// DiskFact describes the disk of a volume in the Pod.
type DiskFact struct {
	// Path is the path of the file or the block device.
	Path string `json:"path"`
	// Block reports whether Path is a block device.
	Block bool `json:"block,omitempty"`
	// Format is raw or qcow2.
	Format string `json:"format"`
	// BackingPath and BackingFormat name the read-only image below an overlay, if there is one.
	BackingPath   string `json:"backingPath,omitempty"`
	BackingFormat string `json:"backingFormat,omitempty"`
	// BackingBlock reports whether BackingPath is a block device.
	BackingBlock bool `json:"backingBlock,omitempty"`
	// DataPath is the raw image or block device with the data, if Path is an overlay that only tracks changed blocks, and
	// Format is qcow2. Nothing but Path may use it while the guest runs.
	DataPath string `json:"dataPath,omitempty"`
	// DataBlock reports whether DataPath is a block device.
	DataBlock bool `json:"dataBlock,omitempty"`
	// CapacityBytes is the size that the guest sees.
	CapacityBytes int64 `json:"capacityBytes,omitempty"`
	// Sliced reports whether the guest sees only the first CapacityBytes of a larger Path: a disk that is migrated to
	// another volume keeps its size while the guest runs.
	Sliced bool `json:"sliced,omitempty"`
	// DirectIO reports whether Path, and BackingPath or DataPath if there is one, can be opened with O_DIRECT, which cache
	// mode none needs.
	DirectIO bool `json:"directIO,omitempty"`
	// KeepsSpace reports whether the volume is preallocated, so that discarded blocks stay allocated.
	KeepsSpace bool `json:"keepsSpace,omitempty"`
	// Filled reports whether Path is a file with no holes when the guest starts.
	Filled bool `json:"filled,omitempty"`
	// LogicalBlockSize, PhysicalBlockSize and DiscardGranularity are those of the device, or of the file system of the
	// file, in bytes. Only disks with blockSize.matchVolume need them.
	LogicalBlockSize   uint `json:"logicalBlockSize,omitempty"`
	PhysicalBlockSize  uint `json:"physicalBlockSize,omitempty"`
	DiscardGranularity uint `json:"discardGranularity,omitempty"`
}

// InterfaceFact is the tap that the agent made for an interface.
type InterfaceFact struct {
	// Tap is the name of the tap device in the Pod. It belongs to UID 107 and is made for InterfaceQueues
	// queues: with IFF_MULTI_QUEUE if there is more than one, and only then.
	Tap string `json:"tap"`
	// MAC is the address that the guest gets.
	MAC string `json:"mac"`
	// MTU is the interface's MTU. 0 means QEMU's default.
	MTU uint `json:"mtu,omitempty"`
}

// KernelBootFact is the kernel and initrd in the Pod.
type KernelBootFact struct {
	// Kernel is the kernel's path; empty if the spec has only an initrd.
	Kernel string `json:"kernel,omitempty"`
	// Initrd is the initrd's path; empty if there is none.
	Initrd string `json:"initrd,omitempty"`
}

// ACPIFact has the paths of ACPI tables in the Pod.
type ACPIFact struct {
	// SLIC and MSDM are the paths of the tables; empty for those that the spec does not have.
	SLIC string `json:"slic,omitempty"`
	MSDM string `json:"msdm,omitempty"`
}

// SMBIOSFact has the SMBIOS system fields of the guest.
type SMBIOSFact struct {
	// Empty fields are omitted.
	Manufacturer string `json:"manufacturer,omitempty"`
	Product      string `json:"product,omitempty"`
	Version      string `json:"version,omitempty"`
	SKU          string `json:"sku,omitempty"`
	Family       string `json:"family,omitempty"`
}
