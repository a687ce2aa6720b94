// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package specsupport

import (
	"fmt"
	"net"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
	"github.com/vireo-project/vireo/internal/launcherpod/masquerade"
)

// ReasonImpossible is the reason of the condition and of the event of a VMI that does not start because no guest can
// have what its spec requests.
const ReasonImpossible = "ImpossibleSpec"

const (
	// maxPort is the last port of TCP and UDP. KubeVirt's admission also accepts 65536.
	maxPort = 65535
	// maxACPIIndex is the largest index of a device that the firmware can report to the guest (QEMU: acpi-index).
	maxACPIIndex = 16*1024 - 1
	// multicast is the bit of a MAC address's first byte that marks a group of stations.
	multicast = 1
)

// uuidPattern matches the UUIDs that libvirt accepts (virUUIDParse).
var uuidPattern = regexp.MustCompile(`^ *(?:[0-9a-fA-F]{2}[- ]*){16}$`)

// watchdogActions are the actions of libvirt that the API has.
var watchdogActions = []v1.WatchdogAction{"", v1.WatchdogActionPoweroff, v1.WatchdogActionReset,
	v1.WatchdogActionShutdown}

// impossibilities collects the errors of one spec.
type impossibilities struct {
	path *field.Path
	spec *v1.VirtualMachineInstanceSpec
	errs field.ErrorList
}

// ImpossibleInVMI returns an error for each value in the spec of a VMI that KubeVirt's admission accepts and that no
// guest can have. KubeVirt admits such a VMI and lets it fail later. path is that of the spec.
func ImpossibleInVMI(path *field.Path, spec *v1.VirtualMachineInstanceSpec) field.ErrorList {
	s := &impossibilities{path: path, spec: spec}
	for i := range spec.Volumes {
		s.volume(path.Child("volumes").Index(i), &spec.Volumes[i])
	}
	devices := path.Child("domain", "devices")
	for i := range spec.Domain.Devices.Disks {
		s.disk(devices.Child("disks").Index(i), &spec.Domain.Devices.Disks[i])
	}
	s.interfaces(devices.Child("interfaces"))
	for i := range spec.Networks {
		s.network(path.Child("networks").Index(i), spec.Networks[i].Pod)
	}
	s.watchdog(devices.Child("watchdog"))
	s.firmware(path.Child("domain", "firmware"))
	return s.errs
}

func (s *impossibilities) invalid(p *field.Path, value any, format string, args ...any) {
	s.errs = append(s.errs, field.Invalid(p, value, fmt.Sprintf(format, args...)))
}

func (s *impossibilities) named(p *field.Path, name, what string) {
	if name == "" {
		s.errs = append(s.errs, field.Required(p, "must name "+what))
	}
}

func (s *impossibilities) volume(at *field.Path, volume *v1.Volume) {
	switch {
	case volume.PersistentVolumeClaim != nil:
		s.named(at.Child("persistentVolumeClaim", "claimName"), volume.PersistentVolumeClaim.ClaimName,
			"a PersistentVolumeClaim")
	case volume.Ephemeral != nil && volume.Ephemeral.PersistentVolumeClaim == nil:
		s.named(at.Child("ephemeral", "persistentVolumeClaim"), "", "a PersistentVolumeClaim")
	case volume.Ephemeral != nil:
		s.named(at.Child("ephemeral", "persistentVolumeClaim", "claimName"), volume.Ephemeral.PersistentVolumeClaim.ClaimName,
			"a PersistentVolumeClaim")
	case volume.ContainerDisk != nil:
		s.named(at.Child("containerDisk", "image"), volume.ContainerDisk.Image, "an image")
	case volume.EmptyDisk != nil && volume.EmptyDisk.Capacity.Sign() <= 0:
		s.invalid(at.Child("emptyDisk", "capacity"), volume.EmptyDisk.Capacity.String(),
			"must be a size greater than 0, such as 2Gi")
	case volume.Sysprep != nil && (volume.Sysprep.Secret == nil) == (volume.Sysprep.ConfigMap == nil):
		s.invalid(at.Child("sysprep"), volume.Name, "must have exactly one of secret and configMap")
	}
}

func (s *impossibilities) disk(at *field.Path, disk *v1.Disk) {
	kind, bus := diskbus.OfDisk(disk)
	row := diskbus.Of(bus)
	if kind == diskbus.LUN && bus != "" && !row.Connects(kind) {
		s.invalid(at.Child("lun", "bus"), bus, "a LUN and persistent reservations take commands of SCSI: use scsi")
	}
	if most := row.MaxSerial; most > 0 && len(disk.Serial) > most {
		s.invalid(at.Child("serial"), disk.Serial, "has %d characters and may have %d on the bus %s", len(disk.Serial), most,
			bus)
	}
}

func (s *impossibilities) interfaces(p *field.Path) {
	indexes := map[int]bool{}
	for i := range s.spec.Domain.Devices.Interfaces {
		iface, at := &s.spec.Domain.Devices.Interfaces[i], p.Index(i)
		if n := bindings(&iface.InterfaceBindingMethod); n > 1 {
			s.invalid(at, iface.Name, "has %d bindings and can have one: keep one of them", n)
		}
		if mac, err := net.ParseMAC(iface.MacAddress); err == nil && mac[0]&multicast != 0 {
			s.invalid(at.Child("macAddress"), iface.MacAddress, "is the address of a group: the first byte must be even")
		}
		for j, port := range iface.Ports {
			if port.Port > maxPort {
				s.invalid(at.Child("ports").Index(j).Child("port"), port.Port, "must be from 1 to %d", maxPort)
			}
		}
		switch index := iface.ACPIIndex; {
		case index < 0 || index > maxACPIIndex:
			s.invalid(at.Child("acpiIndex"), index, "must be from 1 to %d", maxACPIIndex)
		case index > 0 && indexes[index]:
			s.invalid(at.Child("acpiIndex"), index, "belongs to another interface already")
		default:
			indexes[index] = true
		}
	}
}

func bindings(b *v1.InterfaceBindingMethod) int {
	n := 0
	for _, set := range []bool{b.Bridge != nil, b.Masquerade != nil, b.SRIOV != nil, b.PasstBinding != nil} {
		if set {
			n++
		}
	}
	return n
}

func (s *impossibilities) network(at *field.Path, pod *v1.PodNetwork) {
	if pod == nil {
		return
	}
	if _, err := masquerade.IPv4(pod.VMNetworkCIDR); err != nil {
		s.invalid(at.Child("pod", "vmNetworkCIDR"), pod.VMNetworkCIDR, "%v", err)
	}
	if _, err := masquerade.IPv6(pod.VMIPv6NetworkCIDR); err != nil {
		s.invalid(at.Child("pod", "vmIPv6NetworkCIDR"), pod.VMIPv6NetworkCIDR, "%v", err)
	}
}

func (s *impossibilities) watchdog(p *field.Path) {
	dog := s.spec.Domain.Devices.Watchdog
	if dog == nil {
		return
	}
	check := func(model string, action v1.WatchdogAction) {
		if !slices.Contains(watchdogActions, action) {
			s.invalid(p.Child(model, "action"), action, "must be one of poweroff, reset, shutdown")
		}
	}
	if dog.I6300ESB != nil {
		check("i6300esb", dog.I6300ESB.Action)
	}
	if dog.Diag288 != nil {
		check("diag288", dog.Diag288.Action)
	}
}

func (s *impossibilities) firmware(p *field.Path) {
	fw := s.spec.Domain.Firmware
	if fw == nil {
		return
	}
	if fw.UUID != "" && !uuidPattern.MatchString(string(fw.UUID)) {
		s.invalid(p.Child("uuid"), fw.UUID, "must be a UUID, such as 5d307ca9-b3ef-428c-8861-06e72d69f223")
	}
	if fw.Bootloader != nil {
		s.bootloader(p.Child("bootloader"), fw.Bootloader)
	}
	if boot := fw.KernelBoot; boot != nil && boot.Container != nil && boot.Container.KernelPath == "" &&
		boot.KernelArgs != "" {
		s.invalid(p.Child("kernelBoot", "kernelArgs"), boot.KernelArgs, "need a kernel: set container.kernelPath as well")
	}
}

func (s *impossibilities) bootloader(p *field.Path, loader *v1.Bootloader) {
	isFalse := func(flag *bool) bool { return flag != nil && !*flag }
	if features := s.spec.Domain.Features; loader.EFI != nil && features != nil && isFalse(features.ACPI.Enabled) {
		s.invalid(p.Child("efi"), "{}", "UEFI needs ACPI: leave domain.features.acpi.enabled out, or boot with bios")
	}
	if loader.BIOS != nil && loader.BIOS.UseSerial != nil && *loader.BIOS.UseSerial &&
		isFalse(s.spec.Domain.Devices.AutoattachSerialConsole) {
		s.invalid(p.Child("bios", "useSerial"), true,
			"needs a serial console: leave domain.devices.autoattachSerialConsole out")
	}
}
