// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
)

// Block sizes that QEMU emulates, in bytes.
const (
	minBlockSize = 512
	maxBlockSize = 2 << 20
)

// maxDiskSerial is KubeVirt's limit for the serial number of a disk.
const maxDiskSerial = 256

var (
	diskCaches    = []v1.DriverCache{"", v1.CacheNone, v1.CacheWriteThrough, v1.CacheWriteBack}
	diskIOModes   = []v1.DriverIO{"", v1.IONative, v1.IOThreads}
	errorPolicies = []v1.DiskErrorPolicy{
		v1.DiskErrorPolicyStop, v1.DiskErrorPolicyIgnore, v1.DiskErrorPolicyReport, v1.DiskErrorPolicyEnospace,
	}
	// diskSerialPattern matches the serial numbers of disks that libvirt accepts.
	diskSerialPattern = regexp.MustCompile(`^[A-Za-z0-9_.+-]+$`)
	pciAddress        = regexp.MustCompile(`^[\da-fA-F]{4}:[\da-fA-F]{2}:[0-1][\da-fA-F]\.[0-7]$`)
)

func checkDisks(c *check) {
	p := c.devices("disks")
	if c.tooMany(p, len(c.spec.Domain.Devices.Disks)) {
		return
	}
	volumes := c.volumesByName()
	seen := map[string]int{}
	for i := range c.spec.Domain.Devices.Disks {
		disk, at := &c.spec.Domain.Devices.Disks[i], p.Index(i)
		if first, taken := seen[disk.Name]; taken {
			c.invalid(at.Child("name"), disk.Name, "%s and %s must not have the same Name.", at, p.Index(first))
		} else {
			seen[disk.Name] = i
		}
		c.disk(at, disk, volumes)
	}
}

// disk checks one disk.
func (c *check) disk(at *field.Path, disk *v1.Disk, volumes map[string]*v1.Volume) {
	for _, msg := range validation.IsDNS1123Label(disk.Name) {
		c.invalid(at.Child("name"), disk.Name, "%s", msg)
	}
	c.diskVolume(at, disk, volumes)
	c.diskDevice(at, disk)
	c.diskDriver(at, disk)
	c.blockSize(at.Child("blockSize"), disk)
}

func (c *check) volumesByName() map[string]*v1.Volume {
	volumes := map[string]*v1.Volume{}
	for i := range c.spec.Volumes {
		volumes[c.spec.Volumes[i].Name] = &c.spec.Volumes[i]
	}
	return volumes
}

func (c *check) diskVolume(at *field.Path, disk *v1.Disk, volumes map[string]*v1.Volume) {
	volume := volumes[disk.Name]
	if volume == nil {
		// A CD-ROM drive may be empty: a medium can be inserted later.
		switch {
		case disk.CDRom == nil:
			c.invalid(at.Child("name"), disk.Name, "%s '%s' not found. Add a volume of that name.", at.Child("name"), disk.Name)
		case !c.config.IsEnabled(gateHotplugVolumes):
			c.invalid(at.Child("name"), disk.Name, "%s feature gate not enabled, cannot define an empty CD-ROM disk",
				gateHotplugVolumes)
		}
		return
	}
	if volume.DownwardMetrics != nil {
		c.metricsDisk(at, disk)
	}
	if disk.LUN != nil && volume.PersistentVolumeClaim == nil && volume.DataVolume == nil {
		c.invalid(at.Child("lun"), disk.Name, "%s can only be mapped to a DataVolume or PersistentVolumeClaim volume.",
			at.Child("lun"))
	}
}

// metricsDisk checks that the disk with metrics is a virtio disk, from which the guest's tool reads them.
func (c *check) metricsDisk(at *field.Path, disk *v1.Disk) {
	switch {
	case disk.Disk == nil && (disk.LUN != nil || disk.CDRom != nil):
		c.required(at.Child("disk"), "DownwardMetrics volume must be mapped to a disk, but disk is not set on %s.",
			at.Child("disk"))
	case disk.Disk != nil && disk.Disk.Bus != v1.DiskBusVirtio && disk.Disk.Bus != "":
		bus := at.Child("disk", "bus")
		c.invalid(bus, disk.Disk.Bus, "DownwardMetrics volume must be mapped to virtio bus, but %s is set to %s", bus,
			disk.Disk.Bus)
	}
}

func (c *check) diskDevice(at *field.Path, disk *v1.Disk) {
	targets := 0
	for _, set := range []bool{disk.Disk != nil, disk.LUN != nil, disk.CDRom != nil} {
		if set {
			targets++
		}
	}
	if targets > 1 {
		c.invalid(at, disk.Name, "%s can only have a single target type defined", at)
	}
	kind, bus := diskbus.OfDisk(disk)
	if bus != "" {
		c.diskBus(at, disk, kind, bus)
	}
	if disk.Disk == nil || disk.Disk.PciAddress == "" {
		return
	}
	pci := at.Child("disk", "pciAddress")
	if !diskbus.Of(bus).Virtio {
		c.invalid(pci, disk.Disk.PciAddress, "disk %s - setting a PCI address is only possible with bus type virtio.",
			disk.Name)
	}
	if !pciAddress.MatchString(disk.Disk.PciAddress) {
		c.invalid(pci, disk.Disk.PciAddress, "disk %s has malformed PCI address (%s).", disk.Name, disk.Disk.PciAddress)
	}
}

func (c *check) diskBus(at *field.Path, disk *v1.Disk, kind string, bus v1.DiskBus) {
	p, row := at.Child(kind, "bus"), diskbus.Of(bus)
	switch {
	case bus == "ide":
		c.invalid(p, bus, "IDE bus is not supported. Use sata.")
	case row.Name == "":
		c.invalid(p, bus, "%s is set with an unrecognized bus %s, must be one of: %v", at, bus, diskbus.Names(""))
	case kind == diskbus.CDRom && !row.Connects(kind):
		c.invalid(p, bus, "Bus type %s is invalid for CD-ROM device. Use sata, scsi or usb.", bus)
	case disk.Disk != nil && disk.Disk.ReadOnly && row.NeverReadOnly:
		c.invalid(p, bus, "%s hard-disks do not support read-only. Use virtio or scsi, or make it a cdrom.", bus)
	}
	if disk.DedicatedIOThread != nil && *disk.DedicatedIOThread && !row.Virtio {
		c.invalid(at.Child("dedicatedIOThread"), true, "IOThreads are not supported for disks on a %s bus", bus)
	}
}

func (c *check) diskDriver(at *field.Path, disk *v1.Disk) {
	c.diskSerial(at, disk.Serial)
	if !slices.Contains(diskCaches, disk.Cache) {
		c.invalid(at.Child("cache"), disk.Cache, "%s has invalid value %s. Use none, writethrough or writeback.",
			at.Child("cache"), disk.Cache)
	}
	if !slices.Contains(diskIOModes, disk.IO) {
		c.invalid(at.Child("io"), disk.IO, "Disk IO mode for %s is not supported. Supported modes are: native, threads.", at)
	}
	if disk.ErrorPolicy != nil && !slices.Contains(errorPolicies, *disk.ErrorPolicy) {
		c.invalid(at.Child("errorPolicy"), *disk.ErrorPolicy, "%s has invalid value %q", at.Child("errorPolicy"),
			*disk.ErrorPolicy)
	}
}

// diskSerial rejects the serial number of a disk that libvirt does not accept. That of the machine may be any text, as
// in KubeVirt: vSphere's have spaces.
func (c *check) diskSerial(at *field.Path, serial string) {
	if serial == "" {
		return
	}
	p := at.Child("serial")
	if len([]rune(serial)) > maxDiskSerial {
		c.invalid(p, serial, "%s must be less than or equal to %d in length, if specified", at, maxDiskSerial)
	}
	if !diskSerialPattern.MatchString(serial) {
		c.invalid(p, serial, "%s must be made up of the following characters [A-Za-z0-9_.+-], if specified", at)
	}
}

func (c *check) blockSize(p *field.Path, disk *v1.Disk) {
	if disk.BlockSize == nil || disk.BlockSize.Custom == nil {
		return
	}
	custom, match := disk.BlockSize.Custom, disk.BlockSize.MatchVolume
	if match != nil && enabled(match.Enabled) {
		c.invalid(p, "custom, matchVolume", "Block size matching can't be enabled together with a custom value")
		return
	}
	p = p.Child("custom")
	_, bus := diskbus.OfDisk(disk)
	switch {
	case custom.Logical > custom.Physical:
		c.invalid(p.Child("logical"), custom.Logical, "Logical size %d must be the same or less than the physical size of %d",
			custom.Logical, custom.Physical)
	case diskbus.Of(bus).SmallBlocks && custom.Logical != minBlockSize:
		c.invalid(p.Child("logical"), custom.Logical, "Logical size %d must be %d for SATA devices", custom.Logical,
			minBlockSize)
	case custom.DiscardGranularity != nil && custom.Logical != 0 && *custom.DiscardGranularity%custom.Logical != 0:
		c.invalid(p.Child("discardGranularity"), *custom.DiscardGranularity,
			"Discard granularity %d must be multiples of logical size %d", *custom.DiscardGranularity, custom.Logical)
	default:
		c.oneBlockSize(p.Child("logical"), custom.Logical)
		c.oneBlockSize(p.Child("physical"), custom.Physical)
	}
}

func (c *check) oneBlockSize(p *field.Path, size uint) {
	switch {
	case size < minBlockSize:
		c.invalid(p, size, "Provided size of %d is less than the supported minimum size of %d", size, minBlockSize)
	case size > maxBlockSize:
		c.invalid(p, size, "Provided size of %d is greater than the supported maximum size of %d", size, maxBlockSize)
	case size&(size-1) != 0:
		c.invalid(p, size, "Provided size of %d is not a power of 2", size)
	}
}

// checkBootOrder checks that no two disks or interfaces have the same boot order.
func checkBootOrder(c *check) {
	taken := map[uint]bool{}
	checkOrder := func(at *field.Path, order *uint) {
		if order == nil {
			return
		}
		p := at.Child("bootOrder")
		switch {
		case *order < 1:
			c.invalid(p, *order, "%s must have a boot order > 0, if supplied", at)
		case taken[*order]:
			c.invalid(p, *order, "Boot order for %s already set for a different device.", p)
		}
		taken[*order] = true
	}
	for i := range c.spec.Domain.Devices.Disks {
		checkOrder(c.devices("disks").Index(i), c.spec.Domain.Devices.Disks[i].BootOrder)
	}
	for i := range c.spec.Domain.Devices.Interfaces {
		checkOrder(c.devices("interfaces").Index(i), c.spec.Domain.Devices.Interfaces[i].BootOrder)
	}
}
