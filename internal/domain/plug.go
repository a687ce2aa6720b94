// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Action is what an Operation does.
type Action string

// The actions.
const (
	// Attach plugs a disk into the guest.
	Attach Action = "attach"
	// Detach requests of the guest to release a disk, and removes it then.
	Detach Action = "detach"
	// Change changes the medium of a CD-ROM drive: it inserts, exchanges or ejects it.
	Change Action = "change"
)

// Operation changes one disk of a running domain.
type Operation struct {
	// Action is what it does.
	Action Action
	// Name is the name of the disk in the VMI.
	Name string
	// Disk is the device to attach, the one to detach as the domain has it, or the drive with its new medium.
	Disk libvirtxml.DomainDisk
}

// PluggedDisks returns the disks of a VMI whose volumes are in Facts, and empty drives for CD-ROMs without one. Unlike
// those of Build, they have no target and no address but one of the spec: DiffDisks chooses what is free in the running
// domain. Disks whose volume is neither in Facts nor missing from the spec are left out. So are those that are invalid,
// which the error names.
func PluggedDisks(vmi *v1.VirtualMachineInstance, facts Facts) ([]libvirtxml.DomainDisk, error) {
	plan, err := planIOThreads(&vmi.Spec.Domain)
	if err != nil {
		return nil, err
	}
	volumes := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		volumes[vmi.Spec.Volumes[i].Name] = true
	}
	var disks []libvirtxml.DomainDisk
	var errs []error
	for i := range vmi.Spec.Domain.Devices.Disks {
		b := diskBuilder{vmi: vmi, spec: &vmi.Spec.Domain.Devices.Disks[i], path: devicesPath.Child("disks").Index(i),
			plan: plan}
		if b.fact, b.prepared = facts.Disks[b.spec.Name]; !b.prepared &&
			(volumes[b.spec.Name] && !facts.Unplugged[b.spec.Name] || b.spec.CDRom == nil) {
			continue
		}
		if b.prepared {
			if err := checkPluggable(b.path, b.spec); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		disk, err := b.build(newDiskTargets())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		disk.Target.Dev = ""
		if disk.Address != nil && disk.Address.PCI == nil {
			disk.Address = nil
		}
		disks = append(disks, *disk)
	}
	return disks, errors.Join(errs...)
}

// checkPluggable returns an error if a disk cannot be plugged into a running guest.
func checkPluggable(path *field.Path, disk *v1.Disk) error {
	kind, bus := diskbus.OfDisk(disk)
	switch {
	case kind == diskbus.CDRom:
		return nil // The drive exists, and its medium changes.
	case kind == diskbus.LUN && bus == "", diskbus.Of(bus).Plugs(kind):
		return nil
	}
	return field.Invalid(path, disk.Name,
		"a disk can be plugged into a running guest on the bus virtio or scsi only: set its bus, or restart the VM")
}

// DiffDisks returns the operations by which the disks of a running domain become the desired ones of PluggedDisks. It
// attaches, detaches and changes only disks whose medium is a hotplugged volume, by its path, and fills and empties
// drives. All other devices of the domain stay as they are, whatever made them. Disks are identified by their alias.
// kept are the names of volumes that the guest keeps although they are not among the desired disks: those whose state
// is not known now.
//
// Each operation is safe to repeat: after it was carried out, DiffDisks does not return it any more. Disks are detached
// first, because they make room.
func DiffDisks(desired []libvirtxml.DomainDisk, live *libvirtxml.Domain, kept map[string]bool) []Operation {
	var detach, change, attach []Operation
	wanted, room := map[string]bool{}, roomIn(live)
	for i := range desired {
		name, isVolume := diskName(&desired[i])
		if !isVolume {
			continue
		}
		wanted[name] = true
		has := FindDisk(live, desired[i].Alias.Name)
		switch {
		case has == nil && desired[i].Device != diskbus.CDRom && IsPlugged(&desired[i]):
			attach = append(attach, Operation{Action: Attach, Name: name, Disk: room.place(desired[i])})
		case has != nil && has.Device == diskbus.CDRom && desired[i].Device == diskbus.CDRom && isPluggedOrEmpty(has) &&
			isPluggedOrEmpty(&desired[i]) &&
			sourceOf(has) != sourceOf(&desired[i]) && (HasMedium(&desired[i]) || !kept[name]):
			change = append(change, Operation{Action: Change, Name: name, Disk: withMedium(*has, &desired[i])})
		}
	}
	for i := range live.Devices.Disks {
		disk := &live.Devices.Disks[i]
		name, isVolume := diskName(disk)
		switch {
		case !isVolume || wanted[name] || kept[name] || !IsPlugged(disk):
		case disk.Device == diskbus.CDRom:
			// The drive stays until the next start.
			change = append(change, Operation{Action: Change, Name: name, Disk: withMedium(*disk, &libvirtxml.DomainDisk{})})
		default:
			detach = append(detach, Operation{Action: Detach, Name: name, Disk: *disk})
		}
	}
	return slices.Concat(detach, change, attach)
}

// IsPlugged reports whether the medium of a disk is a hotplugged volume.
func IsPlugged(disk *libvirtxml.DomainDisk) bool {
	return strings.HasPrefix(sourceOf(disk), launcherpod.HotplugDisksDir+"/")
}

// IsTracked reports whether QEMU can track the changed blocks of a disk: whether it has an overlay.
func IsTracked(disk *libvirtxml.DomainDisk) bool {
	return disk.Source != nil && disk.Source.DataStore != nil
}

func isPluggedOrEmpty(disk *libvirtxml.DomainDisk) bool { return !HasMedium(disk) || IsPlugged(disk) }

// HasMedium reports whether a disk has a medium. In libvirt's description, a drive without one has an empty file or
// device.
func HasMedium(disk *libvirtxml.DomainDisk) bool {
	source := disk.Source
	return source != nil && (sourceOf(disk) != "" || source.File == nil && source.Block == nil)
}

// diskAliasPrefix is the prefix of DiskAlias.
const diskAliasPrefix = "ua-disk-"

// diskName returns the name of a disk in its VMI, and whether it is one of a VMI.
func diskName(disk *libvirtxml.DomainDisk) (string, bool) {
	if disk.Alias == nil {
		return "", false
	}
	return strings.CutPrefix(disk.Alias.Name, diskAliasPrefix)
}

// FindDisk returns the disk of a domain with an alias, or nil.
func FindDisk(d *libvirtxml.Domain, alias string) *libvirtxml.DomainDisk {
	if d == nil || d.Devices == nil {
		return nil
	}
	for i := range d.Devices.Disks {
		if disk := &d.Devices.Disks[i]; disk.Alias != nil && disk.Alias.Name == alias {
			return disk
		}
	}
	return nil
}

// sourceOf returns the path of a disk's file or device, or nothing.
func sourceOf(disk *libvirtxml.DomainDisk) string {
	switch source := disk.Source; {
	case source == nil:
		return ""
	case source.File != nil:
		return source.File.File
	case source.Block != nil:
		return source.Block.Dev
	default:
		return ""
	}
}

// withMedium returns a drive of a running domain with the medium of another one, or with none. libvirt changes no other
// setting of it.
func withMedium(drive libvirtxml.DomainDisk, from *libvirtxml.DomainDisk) libvirtxml.DomainDisk {
	driver := libvirtxml.DomainDiskDriver{Name: "qemu"}
	if drive.Driver != nil {
		driver = *drive.Driver
	}
	driver.Type = ""
	if from.Driver != nil {
		driver.Type = from.Driver.Type
	}
	drive.Source, drive.BackingStore, drive.Driver = from.Source, from.BackingStore, &driver
	return drive
}

// unit is the place of a disk on the first controller of its bus.
type unit struct {
	bus    string
	number uint
}

// free is what is free in a running domain.
type free struct {
	targets map[string]bool
	units   map[unit]bool
	threads uint
	orders  map[uint]bool
}

func roomIn(live *libvirtxml.Domain) *free {
	room := &free{targets: map[string]bool{}, units: map[unit]bool{}, threads: live.IOThreads, orders: map[uint]bool{}}
	for i := range live.Devices.Disks {
		disk := &live.Devices.Disks[i]
		if disk.Boot != nil {
			room.orders[disk.Boot.Order] = true
		}
		if disk.Target == nil {
			continue
		}
		room.targets[disk.Target.Dev] = true
		if a := disk.Address; a != nil && a.Drive != nil && a.Drive.Unit != nil {
			room.units[unit{disk.Target.Bus, *a.Drive.Unit}] = true
		}
	}
	for i := range live.Devices.Interfaces {
		if boot := live.Devices.Interfaces[i].Boot; boot != nil {
			room.orders[boot.Order] = true
		}
	}
	return room
}

// place gives a disk a target, a unit of the first controller if its bus has units, only I/O threads that exist, and a
// boot order only if that is free: it is for the next start.
func (f *free) place(disk libvirtxml.DomainDisk) libvirtxml.DomainDisk {
	target := *disk.Target
	disk.Target = &target
	bus := busOf(&disk)
	for index := uint(0); target.Dev == ""; index++ {
		if dev := bus.Prefix + letters(index); !f.targets[dev] {
			target.Dev, f.targets[dev] = dev, true
		}
	}
	if bus.Units > 0 {
		at := unit{bus: target.Bus}
		for f.units[at] {
			at.number++
		}
		f.units[at] = true
		disk.Address = driveAddress(0, at.number)
	}
	if disk.Boot != nil && f.orders[disk.Boot.Order] {
		disk.Boot = nil
	}
	if disk.Driver != nil {
		driver := *disk.Driver
		disk.Driver = &driver
		if driver.IOThread != nil && *driver.IOThread > f.threads {
			driver.IOThread = nil
		}
		if driver.IOThreads != nil && uint(len(driver.IOThreads.IOThread)) > f.threads {
			driver.IOThreads = nil
		}
	}
	return disk
}

// FindInterface returns the interface of a domain with an alias, or nil.
func FindInterface(d *libvirtxml.Domain, alias string) *libvirtxml.DomainInterface {
	if d.Devices == nil {
		return nil
	}
	for i := range d.Devices.Interfaces {
		if a := d.Devices.Interfaces[i].Alias; a != nil && a.Name == alias {
			return &d.Devices.Interfaces[i]
		}
	}
	return nil
}
