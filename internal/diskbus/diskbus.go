// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package diskbus is the table of the buses that connect a guest's disks. It is pure. docs/architecture.md says what
// else a new bus needs.
package diskbus

import (
	"slices"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Kinds of disks: the names of their fields in the API, and of libvirt's devices.
const (
	Disk  = "disk"
	LUN   = "lun"
	CDRom = "cdrom"
)

// Plugged is the bus of a disk or LUN that is plugged into a running guest, if none is given. KubeVirt's default.
const Plugged = v1.DiskBusSCSI

// Bus is a row of the table.
type Bus struct {
	// Name is its name in the API and in libvirt.
	Name v1.DiskBus
	// Kinds are the kinds of disks that it connects.
	Kinds []string
	// Architectures are those of the guests that may use it. None is every one.
	Architectures []string
	// Prefix is that of the target names of its disks, which are numbered for each prefix.
	Prefix string
	// Controller is libvirt's type of the controller whose model the domain sets. libvirt adds any other controller.
	Controller string
	// Units is how many disks a controller has, whose addresses are set in order. libvirt chooses them if it is 0.
	Units uint
	// Virtio reports whether each disk is a virtio device: it has queues and I/O threads, and may have a PCI address.
	Virtio bool
	// Hotpluggable reports whether disks can be plugged into a running guest, except CD-ROM drives.
	Hotpluggable bool
	// NeverReadOnly reports whether a hard disk cannot be read-only.
	NeverReadOnly bool
	// SmallBlocks reports whether the logical blocks of a disk always have the smallest size.
	SmallBlocks bool
	// MaxSerial is QEMU's limit for the serial number of a disk. QEMU cuts a longer one if it is 0. Of a USB disk, the
	// serial number is also the ID of the SCSI disk in it. Source: qemu hw/scsi/scsi-disk.c.
	MaxSerial int
}

const (
	// ahciPorts is the number of ports of an AHCI controller.
	ahciPorts = 6
	// scsiUnits is the number of units of a target. Source: qemu hw/scsi/virtio-scsi.c, VIRTIO_SCSI_MAX_LUN.
	scsiUnits = 16384
)

// Architectures as Kubernetes names them. The machines virt and s390-ccw-virtio have no SATA controller.
const (
	amd64 = "amd64"
	s390x = "s390x"
)

// table is in the order in which messages list the buses, which is KubeVirt's.
var table = []Bus{
	{
		Name: v1.DiskBusVirtio, Kinds: []string{Disk}, Prefix: "vd", Virtio: true, Hotpluggable: true,
	}, {
		// One virtio-scsi controller has room for all disks. Without addresses, libvirt would add a second one for later
		// letters.
		Name: v1.DiskBusSCSI, Kinds: []string{Disk, LUN, CDRom}, Prefix: "sd", Controller: "scsi", Units: scsiUnits,
		Hotpluggable: true, MaxSerial: 36,
	}, {
		Name: v1.DiskBusSATA, Kinds: []string{Disk, CDRom}, Architectures: []string{amd64}, Prefix: "sd", Units: ahciPorts,
		NeverReadOnly: true, SmallBlocks: true,
	}, {
		Name: v1.DiskBusUSB, Kinds: []string{Disk, CDRom}, Architectures: []string{amd64, s390x}, Prefix: "sd",
		Controller: "usb", MaxSerial: 20,
	},
}

// preferred is the order in which Default searches. Every system has a driver for SATA.
var preferred = []v1.DiskBus{v1.DiskBusSATA, v1.DiskBusVirtio, v1.DiskBusSCSI}

// Of returns the row of a bus. That of an unknown one has no name, and connects nothing.
func Of(name v1.DiskBus) Bus {
	for i := range table {
		if table[i].Name == name {
			return table[i]
		}
	}
	return Bus{}
}

// Names returns the names of the buses that connect a kind of disks, and of all buses for "".
func Names(kind string) []v1.DiskBus {
	var names []v1.DiskBus
	for i := range table {
		if kind == "" || table[i].Connects(kind) {
			names = append(names, table[i].Name)
		}
	}
	return names
}

// Default returns the bus of a kind of disks of which the spec names none.
func Default(kind, architecture string) v1.DiskBus {
	for _, name := range preferred {
		if bus := Of(name); bus.Connects(kind) && bus.IsOn(architecture) {
			return name
		}
	}
	return ""
}

// Connects reports whether a kind of disks can be on the bus.
func (b Bus) Connects(kind string) bool { return slices.Contains(b.Kinds, kind) }

// IsOn reports whether guests of an architecture may use the bus.
func (b Bus) IsOn(architecture string) bool {
	return len(b.Architectures) == 0 || slices.Contains(b.Architectures, architecture)
}

// Plugs reports whether a kind of disks can be plugged into a running guest on the bus.
func (b Bus) Plugs(kind string) bool { return b.Hotpluggable && kind != CDRom && b.Connects(kind) }

// OfDisk returns the kind and the bus of a disk. A disk without a kind, which becomes a hard disk, has neither.
func OfDisk(disk *v1.Disk) (kind string, bus v1.DiskBus) {
	switch {
	case disk.Disk != nil:
		return Disk, disk.Disk.Bus
	case disk.LUN != nil:
		return LUN, disk.LUN.Bus
	case disk.CDRom != nil:
		return CDRom, disk.CDRom.Bus
	default:
		return "", ""
	}
}
