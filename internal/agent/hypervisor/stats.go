// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"context"
	"encoding/xml"
	"strconv"
	"strings"
	"time"

	"libvirt.org/go/libvirtxml"
)

// Limits for the statistics of a domain. Beyond them, statistics are left out.
const (
	maxStatVCPUs = 512
	maxStatNICs  = 32
	maxStatDisks = 128
	// maxDeviceName is the limit for the name of a device in bytes.
	maxDeviceName = 32
	// maxValues is the capacity of Values, and valuesBytes its size.
	maxValues, valuesBytes = 8, 8*8 + 8
	// MaxStats is the limit for the memory of a Stats in bytes.
	MaxStats = maxStatVCPUs*valuesBytes + (maxStatNICs+maxStatDisks)*(valuesBytes+16+maxDeviceName) + 1<<10
	// maxUsageFilesystems is how many file systems of a guest have metrics, and maxUsageText the limit for each of their
	// three texts in bytes.
	maxUsageFilesystems, maxUsageText = 32, 128
	// MaxUsage is the limit for the memory of a GuestUsage in bytes.
	MaxUsage = maxUsageFilesystems*(3*(16+maxUsageText)+64) + 1<<10
)

// Stat is a statistic by the name that libvirt gives it, without the number of its vCPU or device.
type Stat int

// Statistics of a domain: those of its CPU time, of its memory, and of the use of its memory.
const (
	CPUTime Stat = iota
	CPUUser
	CPUSystem
	DirtyRate
	BalloonCurrent
	BalloonRSS
)

// Statistics of a domain that the driver in the guest reports.
const (
	BalloonAvailable Stat = iota
	BalloonUnused
	BalloonUsable
	BalloonCaches
	BalloonSwapIn
	BalloonSwapOut
	BalloonMajorFaults
	BalloonMinorFaults
)

// Statistics of a vCPU.
const (
	VCPUState Stat = iota
	VCPUTime
	VCPUWait
	VCPUDelay
)

// Statistics of a network interface.
const (
	RxBytes Stat = iota
	RxPackets
	RxErrors
	RxDrops
	TxBytes
	TxPackets
	TxErrors
	TxDrops
)

// Statistics of a disk.
const (
	ReadRequests Stat = iota
	ReadBytes
	ReadTimes
	WriteRequests
	WriteBytes
	WriteTimes
	FlushRequests
	FlushTimes
)

// The names that libvirt gives the statistics. Source: libvirt docs, virConnectGetAllDomainStats.
var (
	domainStats = map[string]Stat{
		"cpu.time": CPUTime, "cpu.user": CPUUser, "cpu.system": CPUSystem, "dirtyrate.megabytes_per_second": DirtyRate,
		"balloon.current": BalloonCurrent, "balloon.rss": BalloonRSS,
	}
	guestStats = map[string]Stat{
		"balloon.available": BalloonAvailable, "balloon.unused": BalloonUnused, "balloon.usable": BalloonUsable,
		"balloon.disk_caches": BalloonCaches, "balloon.swap_in": BalloonSwapIn, "balloon.swap_out": BalloonSwapOut,
		"balloon.major_fault": BalloonMajorFaults, "balloon.minor_fault": BalloonMinorFaults,
	}
	vcpuStats = map[string]Stat{"state": VCPUState, "time": VCPUTime, "wait": VCPUWait, "delay": VCPUDelay}
	nicStats  = map[string]Stat{
		"rx.bytes": RxBytes, "rx.pkts": RxPackets, "rx.errs": RxErrors, "rx.drop": RxDrops,
		"tx.bytes": TxBytes, "tx.pkts": TxPackets, "tx.errs": TxErrors, "tx.drop": TxDrops,
	}
	diskStats = map[string]Stat{
		"rd.reqs": ReadRequests, "rd.bytes": ReadBytes, "rd.times": ReadTimes, "wr.reqs": WriteRequests, "wr.bytes": WriteBytes, "wr.times": WriteTimes,
		"fl.reqs": FlushRequests, "fl.times": FlushTimes,
	}
)

// Values are statistics. Those that libvirt did not report are not set.
type Values struct {
	set    uint16
	values [maxValues]float64
}

// Get returns a statistic, and whether libvirt reported it.
func (v *Values) Get(s Stat) (float64, bool) { return v.values[s], v.set&(1<<s) != 0 }

// Set sets a statistic. Negative numbers and those that are not finite are not statistics.
func (v *Values) Set(s Stat, value float64) {
	const most = 1 << 63
	if value >= 0 && value <= most {
		v.values[s], v.set = value, v.set|1<<s
	}
}

// Device is the statistics of a network interface or a disk.
type Device struct {
	// Name is the name that libvirt gives it: that of its tap or its target.
	Name string
	Values
}

// Stats are the statistics of a running domain. A launcher reports them: their number and their names are limited, and
// nothing else about them is sure.
type Stats struct {
	// Domain are the statistics of the domain, and Guest those that the driver of the balloon in the guest reports.
	Domain, Guest Values
	// VCPUs, NICs and Disks are those of its parts, by libvirt's number. There may be parts without any.
	VCPUs       []Values
	NICs, Disks []Device
}

// Add adds a statistic by libvirt's name. It ignores those that are not known.
func (s *Stats) Add(name string, number float64, text string) {
	if stat, ok := domainStats[name]; ok {
		s.Domain.Set(stat, number)
		return
	}
	if stat, ok := guestStats[name]; ok {
		s.Guest.Set(stat, number)
		return
	}
	group, rest, _ := strings.Cut(name, ".")
	index, field, _ := strings.Cut(rest, ".")
	i, err := strconv.Atoi(index)
	if err != nil || i < 0 {
		return
	}
	switch group {
	case "vcpu":
		if stat, ok := vcpuStats[field]; ok && i < maxStatVCPUs {
			s.VCPUs = extend(s.VCPUs, i)
			s.VCPUs[i].Set(stat, number)
		}
	case "net":
		if i < maxStatNICs {
			s.NICs = addDevice(s.NICs, nicStats, i, field, number, text)
		}
	case "block":
		if i < maxStatDisks {
			s.Disks = addDevice(s.Disks, diskStats, i, field, number, text)
		}
	}
}

func addDevice(devices []Device, stats map[string]Stat, i int, field string, number float64, text string) []Device {
	stat, known := stats[field]
	if !known && field != "name" {
		return devices
	}
	devices = extend(devices, i)
	if known {
		devices[i].Set(stat, number)
	} else {
		devices[i].Name = CleanLine(Clean(text), maxDeviceName)
	}
	return devices
}

// extend returns a list that has an element i.
func extend[T any](list []T, i int) []T {
	for len(list) <= i {
		var none T
		list = append(list, none)
	}
	return list
}

// GuestUsage is what the guest agent reports about the use of the guest. Its texts are sanitized and its lists capped.
type GuestUsage struct {
	// At is when it was reported.
	At time.Time
	// Filesystems are the mounted file systems.
	Filesystems []GuestFilesystem
	// Load is the average number of processes that run or wait in the last 1, 5 and 15 minutes; nil if the agent does not
	// report it.
	Load *[3]float64
}

// NewGuestUsage returns a GuestUsage with the file systems that a guest reports, up to the limits.
func NewGuestUsage(at time.Time, filesystems []GuestFilesystem) *GuestUsage {
	u := &GuestUsage{At: at}
	for i := range filesystems[:min(len(filesystems), maxUsageFilesystems)] {
		f := &filesystems[i]
		u.Filesystems = append(u.Filesystems, GuestFilesystem{
			Name: CleanLine(f.Name, maxUsageText), Mountpoint: CleanLine(f.Mountpoint, maxUsageText),
			Type: CleanLine(f.Type, maxUsageText), UsedBytes: f.UsedBytes, TotalBytes: f.TotalBytes,
		})
	}
	return u
}

// memoryDeviceModel is libvirt's name of the device from which a guest takes more memory.
const memoryDeviceModel = "virtio-mem"

// memoryDevices is what a live domain has about the memory that its guest has taken. Package libvirtxml lacks the
// element.
type memoryDevices struct {
	Devices struct {
		Memory []struct {
			Model  string `xml:"model,attr"`
			Target struct {
				Current struct {
					Unit  string `xml:"unit,attr"`
					Value uint64 `xml:",chardata"`
				} `xml:"current"`
			} `xml:"target"`
		} `xml:"memory"`
	} `xml:"devices"`
}

// Unmarshal reads the XML of a domain.
func (m *memoryDevices) Unmarshal(text string) error { return xml.Unmarshal([]byte(text), m) }

// ReadPlugged returns how many bytes the guest has taken from its memory devices, from the XML of a live domain.
func ReadPlugged(ctx context.Context, text string) (uint64, error) {
	if !strings.Contains(text, memoryDeviceModel) {
		return 0, nil
	}
	devices := &memoryDevices{}
	if err := ReadXML(ctx, text, devices); err != nil {
		return 0, err
	}
	var plugged uint64
	for _, device := range devices.Devices.Memory {
		if device.Model == memoryDeviceModel {
			plugged += Bytes(device.Target.Current.Value, device.Target.Current.Unit)
		}
	}
	return plugged, nil
}

// MemoryDevice returns the device of a domain from which its guest takes more memory, or nil.
func (d *Domain) MemoryDevice() *libvirtxml.DomainMemorydev {
	if d == nil || d.XML == nil || d.XML.Devices == nil {
		return nil
	}
	for i := range d.XML.Devices.Memorydevs {
		if device := &d.XML.Devices.Memorydevs[i]; device.Model == memoryDeviceModel && device.Target != nil {
			return device
		}
	}
	return nil
}

// AtBoot returns how many bytes of memory the guest had at its start: libvirt counts the size of the device as memory,
// too.
func (d *Domain) AtBoot() uint64 {
	if d == nil || d.XML == nil || d.XML.Memory == nil {
		return 0
	}
	all := Bytes(uint64(d.XML.Memory.Value), d.XML.Memory.Unit)
	if device := d.MemoryDevice(); device != nil && device.Target.Size != nil {
		all -= min(all, Bytes(uint64(device.Target.Size.Value), device.Target.Size.Unit))
	}
	return all
}

// Granted returns how many bytes of memory the guest may have.
func (d *Domain) Granted() uint64 {
	granted := d.AtBoot()
	if device := d.MemoryDevice(); device != nil && device.Target.Requested != nil {
		granted += Bytes(uint64(device.Target.Requested.Value), device.Target.Requested.Unit)
	}
	return granted
}

// Bytes returns a size in libvirt's XML in bytes. Its default unit is KiB.
func Bytes(value uint64, unit string) uint64 {
	shift := 10
	switch unit {
	case "b", "bytes":
		shift = 0
	case "M", "MiB":
		shift = 20
	case "G", "GiB":
		shift = 30
	}
	if value > 1<<62>>shift {
		return 1 << 62 // A size that no guest has: the launcher may be compromised.
	}
	return value << shift
}
