// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

// Facts is what Build must know about a node and a launcher Pod beyond the VMI: plain data, gathered by the
// agent before it builds, which can be dumped and replayed. Paths are those inside the launcher Pod.
type Facts struct {
	// Emulation says that QEMU emulates the CPU in software and nothing may ask for KVM.
	Emulation bool `json:"emulation"`
	// Arch is the guest's architecture as Kubernetes names it; empty means amd64.
	Arch string `json:"arch,omitempty"`
	// Disks are the prepared volumes by volume name.
	Disks map[string]DiskFact `json:"disks,omitempty"`
	// Interfaces are the prepared taps by the name of the VMI's interface.
	Interfaces map[string]InterfaceFact `json:"interfaces,omitempty"`
	// KernelBoot is set when the guest boots a kernel from an image.
	KernelBoot *KernelBootFact `json:"kernelBoot,omitempty"`
	// ACPI are the prepared ACPI tables.
	ACPI ACPIFact `json:"acpi,omitzero"`
	// SMBIOS is the vendor's text from the cluster's configuration.
	SMBIOS SMBIOSFact `json:"smbios"`
	// MemBalloonStatsPeriod is the interval of memory statistics in seconds; 0 means none.
	MemBalloonStatsPeriod uint `json:"memBalloonStatsPeriod,omitempty"`
	// VhostNet says that the Pod has /dev/vhost-net.
	VhostNet bool `json:"vhostNet,omitempty"`
	// CPUs are the node's CPUs that the Pod may run on, in ascending order. They are needed only for dedicated CPUs, and
	// then the kubelet has given them to the Pod alone.
	CPUs []uint `json:"cpus,omitempty"`
	// NUMACells are the node's CPUs by what they share. Dedicated CPUs are chosen by them.
	NUMACells []NUMACellFact `json:"numaCells,omitempty"`
}

// NUMACellFact is a part of the node with memory of its own.
type NUMACellFact struct {
	// ID is the node's number of the cell.
	ID uint `json:"id"`
	// CPUs are those that reach the cell's memory fastest.
	CPUs []CPUFact `json:"cpus,omitempty"`
}

// CPUFact is a logical CPU of the node.
type CPUFact struct {
	// ID is the node's number of the CPU.
	ID uint `json:"id"`
	// Siblings are the CPUs of the same core, itself included; none means that it is a core by itself.
	Siblings []uint `json:"siblings,omitempty"`
}

// DiskFact is where a volume's disk lies in the Pod and how it is written.
type DiskFact struct {
	// Path is the file or the device.
	Path string `json:"path"`
	// Block says that Path is a block device.
	Block bool `json:"block,omitempty"`
	// Format is raw or qcow2.
	Format string `json:"format"`
	// BackingPath and BackingFormat name the read-only image below an overlay, if there is one.
	BackingPath   string `json:"backingPath,omitempty"`
	BackingFormat string `json:"backingFormat,omitempty"`
	// BackingBlock says that BackingPath is a block device.
	BackingBlock bool `json:"backingBlock,omitempty"`
	// CapacityBytes is the size that the guest sees.
	CapacityBytes int64 `json:"capacityBytes,omitempty"`
	// Sliced says that Path may hold more than CapacityBytes and that the guest gets no more than those: a disk that moves to another
	// volume while the guest runs keeps its size.
	Sliced bool `json:"sliced,omitempty"`
	// DirectIO says that Path, and BackingPath if there is one, can be opened with O_DIRECT, which cache mode
	// none needs.
	DirectIO bool `json:"directIO,omitempty"`
	// KeepsSpace says that the volume stays allocated whatever the guest deletes.
	KeepsSpace bool `json:"keepsSpace,omitempty"`
	// Filled says that Path is a file with no holes when the guest starts.
	Filled bool `json:"filled,omitempty"`
	// LogicalBlockSize and PhysicalBlockSize are those of the device or of the file system below the file, in
	// bytes, and DiscardGranularity is the least that can be given back. They are needed only when the disk asks for
	// blockSize.matchVolume.
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
	// MTU is what the guest may use; 0 leaves it to QEMU.
	MTU uint `json:"mtu,omitempty"`
}

// KernelBootFact is the kernel and initrd in the Pod.
type KernelBootFact struct {
	// Kernel is the kernel's path; empty if only an initrd was asked for.
	Kernel string `json:"kernel,omitempty"`
	// Initrd is the initrd's path; empty if there is none.
	Initrd string `json:"initrd,omitempty"`
}

// ACPIFact is where the Pod has ACPI tables.
type ACPIFact struct {
	// SLIC and MSDM are the tables' files; empty ones are not asked for.
	SLIC string `json:"slic,omitempty"`
	MSDM string `json:"msdm,omitempty"`
}

// SMBIOSFact is what the guest's firmware shows as its maker.
type SMBIOSFact struct {
	// Manufacturer, Product, Version, SKU and Family are SMBIOS system fields; empty ones are left out.
	Manufacturer string `json:"manufacturer,omitempty"`
	Product      string `json:"product,omitempty"`
	Version      string `json:"version,omitempty"`
	SKU          string `json:"sku,omitempty"`
	Family       string `json:"family,omitempty"`
}
