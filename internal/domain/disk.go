// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
)

const (
	formatRaw   = "raw"
	formatQCOW2 = "qcow2"
)

// DiskAlias returns the alias of the disk with a name in spec.domain.devices.disks. libvirt's events have it.
func DiskAlias(name string) string { return diskAliasPrefix + name }

// configureDisks adds the disks in the order of the spec, in which it also numbers their targets.
func configureDisks(vmi *v1.VirtualMachineInstance, facts Facts, domain *libvirtxml.Domain) error {
	plan, err := planIOThreads(&vmi.Spec.Domain)
	if err != nil {
		return nil //nolint:nilerr // configureIOThreads reports it
	}
	volumes := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		volumes[vmi.Spec.Volumes[i].Name] = true
	}
	targets := newDiskTargets()
	for i := range vmi.Spec.Domain.Devices.Disks {
		b := diskBuilder{
			vmi:  vmi,
			spec: &vmi.Spec.Domain.Devices.Disks[i],
			path: devicesPath.Child("disks").Index(i),
			plan: plan,
		}
		b.fact, b.prepared = facts.Disks[b.spec.Name]
		switch unplugged := !b.prepared && facts.Unplugged[b.spec.Name]; {
		case unplugged && b.spec.CDRom == nil:
			continue
		case !unplugged && !b.prepared && volumes[b.spec.Name]:
			return fmt.Errorf("%s: the volume %q is %w", b.path, b.spec.Name, ErrNotPrepared)
		}
		disk, err := b.build(targets)
		if err != nil {
			return err
		}
		domain.Devices.Disks = append(domain.Devices.Disks, *disk)
	}
	return nil
}

// diskBuilder builds one disk.
type diskBuilder struct {
	vmi      *v1.VirtualMachineInstance
	spec     *v1.Disk
	path     *field.Path
	plan     ioThreadPlan
	fact     DiskFact
	prepared bool
}

func (b *diskBuilder) build(targets *diskTargets) (*libvirtxml.DomainDisk, error) {
	disk := &libvirtxml.DomainDisk{
		Serial: b.spec.Serial,
		Alias:  &libvirtxml.DomainAlias{Name: DiskAlias(b.spec.Name)},
		Boot:   bootOrder(b.spec.BootOrder),
	}
	bus, err := b.device(disk)
	if err != nil {
		return nil, err
	}
	tray := disk.Target
	disk.Target, disk.Address = targets.next(bus)
	if tray != nil {
		disk.Target.Tray = tray.Tray
	}
	if disk.Device == diskbus.Disk && diskbus.Of(bus).Virtio {
		disk.Model = virtioModel(b.vmi)
	}
	if b.spec.Disk != nil && b.spec.Disk.PciAddress != "" {
		if !diskbus.Of(bus).Virtio {
			return nil, field.Invalid(b.path.Child("disk", "pciAddress"), b.spec.Disk.PciAddress,
				"only a disk on the virtio bus has a PCI address: set disk.bus to virtio")
		}
		if disk.Address, err = pciAddress(b.path.Child("disk", "pciAddress"), b.spec.Disk.PciAddress); err != nil {
			return nil, err
		}
	}
	if !b.prepared {
		return b.emptyDrive(disk)
	}
	return disk, b.medium(disk, bus)
}

// device sets the device type of the disk and returns its bus.
func (b *diskBuilder) device(disk *libvirtxml.DomainDisk) (v1.DiskBus, error) {
	switch {
	case b.spec.LUN != nil:
		return b.lun(disk)
	case b.spec.CDRom != nil:
		disk.Device = diskbus.CDRom
		// For libvirt a CD-ROM is always read-only, so cdrom.readonly has no effect.
		disk.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
		if b.spec.CDRom.Tray == v1.TrayStateOpen {
			disk.Target = &libvirtxml.DomainDiskTarget{Tray: "open"}
		}
		return b.bus(diskbus.CDRom, b.spec.CDRom.Bus)
	default:
		disk.Device = diskbus.Disk
		target := v1.DiskTarget{}
		if b.spec.Disk != nil {
			target = *b.spec.Disk
		}
		bus, err := b.bus(diskbus.Disk, target.Bus)
		if target.ReadOnly {
			if diskbus.Of(bus).NeverReadOnly {
				return "", field.Invalid(b.path.Child("disk", "readonly"), true,
					"a SATA disk cannot be read-only: set disk.bus to virtio, scsi or usb, or make it a cdrom")
			}
			disk.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
		}
		return bus, err
	}
}

func (b *diskBuilder) lun(disk *libvirtxml.DomainDisk) (v1.DiskBus, error) {
	disk.Device = diskbus.LUN
	if b.spec.LUN.Reservation {
		return "", field.Forbidden(b.path.Child("lun", "reservation"), "not implemented: leave it out")
	}
	if b.prepared && !b.fact.Block {
		return "", field.Invalid(b.path.Child("lun"), b.spec.Name,
			"SCSI commands can only be passed to a block device: use a claim with volumeMode Block, or disk instead of lun")
	}
	if b.spec.LUN.ReadOnly {
		disk.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
	}
	return b.bus(diskbus.LUN, b.spec.LUN.Bus)
}

// bus returns the bus of a kind of disks, which may be the default.
func (b *diskBuilder) bus(kind string, bus v1.DiskBus) (v1.DiskBus, error) {
	switch {
	case bus == "":
		return diskbus.Default(kind, archAMD64), nil
	case !diskbus.Of(bus).Connects(kind):
		return "", field.NotSupported(b.path.Child(kind, "bus"), bus, diskbus.Names(kind))
	default:
		return bus, nil
	}
}

// emptyDrive returns a CD-ROM drive without a medium. Every other disk needs a volume.
func (b *diskBuilder) emptyDrive(disk *libvirtxml.DomainDisk) (*libvirtxml.DomainDisk, error) {
	if disk.Device != diskbus.CDRom {
		return nil, field.NotFound(b.path.Child("name"), b.spec.Name)
	}
	disk.Driver = &libvirtxml.DomainDiskDriver{Name: "qemu"}
	return disk, nil
}

// medium sets the source of the disk's data. It sets the format of every image in the backing chain, so that QEMU does
// not probe them: a guest could write a header into its raw disk that names any file as a backing file.
func (b *diskBuilder) medium(disk *libvirtxml.DomainDisk, bus v1.DiskBus) error {
	if err := b.checkFact(); err != nil {
		return err
	}
	disk.Source = diskSource(b.fact.Path, b.fact.Block)
	if b.fact.Sliced {
		disk.Source.Slices = &libvirtxml.DomainDiskSlices{Slices: []libvirtxml.DomainDiskSlice{{Type: "storage",
			Size: uint(b.fact.CapacityBytes)}}}
	}
	if b.fact.DataPath != "" {
		disk.Source.DataStore = &libvirtxml.DomainDiskDataStore{
			Format: &libvirtxml.DomainDiskFormat{Type: formatRaw}, Source: diskSource(b.fact.DataPath, b.fact.DataBlock),
		}
	}
	disk.BackingStore = &libvirtxml.DomainDiskBackingStore{}
	if b.fact.BackingPath != "" {
		disk.BackingStore.Format = &libvirtxml.DomainDiskFormat{Type: b.fact.BackingFormat}
		disk.BackingStore.Source = diskSource(b.fact.BackingPath, b.fact.BackingBlock)
		disk.BackingStore.BackingStore = &libvirtxml.DomainDiskBackingStore{}
	}
	if isTrue(b.spec.Shareable) {
		if b.fact.Format != formatRaw {
			return field.Invalid(b.path.Child("shareable"), true, "only a raw disk can be shared and this one is "+b.fact.Format)
		}
		disk.Shareable = &libvirtxml.DomainDiskShareable{}
	}
	var err error
	if disk.BlockIO, err = b.blockSize(); err != nil {
		return err
	}
	disk.Driver, err = b.driver(disk, bus)
	return err
}

func (b *diskBuilder) checkFact() error {
	formats := []string{b.fact.Format}
	if b.fact.BackingPath != "" {
		formats = append(formats, b.fact.BackingFormat)
	}
	for _, format := range formats {
		if format != formatRaw && format != formatQCOW2 {
			return fmt.Errorf("%s: the format %q of volume %q is neither raw nor qcow2: the volume is %w",
				b.path, format, b.spec.Name, ErrNotPrepared)
		}
	}
	if b.fact.Path == "" {
		return fmt.Errorf("%s: the volume %q has no path: it is %w", b.path, b.spec.Name, ErrNotPrepared)
	}
	return nil
}

func diskSource(path string, block bool) *libvirtxml.DomainDiskSource {
	if block {
		return &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: path}}
	}
	return &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: path}}
}

// MatchesVolume reports whether a disk has the block sizes of its volume, which then must be in Facts.
func MatchesVolume(disk *v1.Disk) bool {
	return disk.BlockSize != nil && disk.BlockSize.MatchVolume != nil && enabled(disk.BlockSize.MatchVolume.Enabled)
}

func (b *diskBuilder) blockSize() (*libvirtxml.DomainDiskBlockIO, error) {
	size := b.spec.BlockSize
	if size == nil {
		return nil, nil
	}
	path := b.path.Child("blockSize")
	match := MatchesVolume(b.spec)
	switch {
	case size.Custom != nil && match:
		return nil, field.Invalid(path, "custom, matchVolume", "a disk has one block size: leave one of them out")
	case size.Custom != nil:
		blockIO := &libvirtxml.DomainDiskBlockIO{
			LogicalBlockSize:  size.Custom.Logical,
			PhysicalBlockSize: size.Custom.Physical,
		}
		if granularity := size.Custom.DiscardGranularity; granularity != nil {
			blockIO.DiscardGranularity = new(*granularity)
		}
		return blockIO, nil
	case match && b.fact.LogicalBlockSize == 0:
		return nil, fmt.Errorf("%s: the block size of volume %q is %w", path.Child("matchVolume"), b.spec.Name,
			ErrNotPrepared)
	case match:
		return b.volumeBlockSize(), nil
	}
	return nil, nil
}

// volumeBlockSize returns the block sizes of the volume. QEMU refuses a granularity that is not a multiple of the
// logical size.
func (b *diskBuilder) volumeBlockSize() *libvirtxml.DomainDiskBlockIO {
	logical, granularity := b.fact.LogicalBlockSize, b.fact.DiscardGranularity
	physical := max(b.fact.PhysicalBlockSize, logical)
	if granularity%logical != 0 {
		granularity = physical
	}
	return &libvirtxml.DomainDiskBlockIO{LogicalBlockSize: logical, PhysicalBlockSize: physical,
		DiscardGranularity: &granularity}
}
