// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package impossible knows what a VMI may say, since KubeVirt's admission takes it, and no guest can have: a claim
// without a name, a port beyond the last one. KubeVirt lets such a VMI fail somewhere on its way. Here admission warns
// and the VMI does not start, with a condition that names the field, so that nothing that KubeVirt admits is refused.
package impossible

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/masquerade"
)

// Reason is the reason of the condition and of the event of a VMI that does not start because of what it says.
const Reason = "ImpossibleSpec"

const (
	// maxPort is the last port of TCP and UDP. KubeVirt's admission lets the number after it pass.
	maxPort = 65535
	// maxACPIIndex is the largest number that the firmware can hand to the guest as a device's index (QEMU: acpi-index).
	maxACPIIndex = 16*1024 - 1
)

// watchdogActions are libvirt's that the API offers.
var watchdogActions = []v1.WatchdogAction{"", v1.WatchdogActionPoweroff, v1.WatchdogActionReset, v1.WatchdogActionShutdown}

// find collects what is impossible.
type find struct {
	path *field.Path
	spec *v1.VirtualMachineInstanceSpec
	errs field.ErrorList
}

// InVMI returns what a VMI asks for and no guest can have. The path is that of its spec.
func InVMI(path *field.Path, spec *v1.VirtualMachineInstanceSpec) field.ErrorList {
	f := &find{path: path, spec: spec}
	for i := range spec.Volumes {
		f.volume(path.Child("volumes").Index(i), &spec.Volumes[i])
	}
	devices := path.Child("domain", "devices")
	for i := range spec.Domain.Devices.Disks {
		f.disk(devices.Child("disks").Index(i), &spec.Domain.Devices.Disks[i])
	}
	f.interfaces(devices.Child("interfaces"))
	for i := range spec.Networks {
		f.network(path.Child("networks").Index(i), spec.Networks[i].Pod)
	}
	f.watchdog(devices.Child("watchdog"))
	f.kernelBoot(path.Child("domain", "firmware", "kernelBoot"))
	return f.errs
}

func (f *find) invalid(p *field.Path, value any, format string, args ...any) {
	f.errs = append(f.errs, field.Invalid(p, value, fmt.Sprintf(format, args...)))
}

func (f *find) named(p *field.Path, name, what string) {
	if name == "" {
		f.errs = append(f.errs, field.Required(p, "must name "+what))
	}
}

func (f *find) volume(at *field.Path, volume *v1.Volume) {
	switch {
	case volume.PersistentVolumeClaim != nil:
		f.named(at.Child("persistentVolumeClaim", "claimName"), volume.PersistentVolumeClaim.ClaimName, "a PersistentVolumeClaim")
	case volume.Ephemeral != nil && volume.Ephemeral.PersistentVolumeClaim == nil:
		f.named(at.Child("ephemeral", "persistentVolumeClaim"), "", "a PersistentVolumeClaim")
	case volume.Ephemeral != nil:
		f.named(at.Child("ephemeral", "persistentVolumeClaim", "claimName"), volume.Ephemeral.PersistentVolumeClaim.ClaimName,
			"a PersistentVolumeClaim")
	case volume.ContainerDisk != nil:
		f.named(at.Child("containerDisk", "image"), volume.ContainerDisk.Image, "an image")
	case volume.EmptyDisk != nil && volume.EmptyDisk.Capacity.Sign() <= 0:
		f.invalid(at.Child("emptyDisk", "capacity"), volume.EmptyDisk.Capacity.String(), "must be a size greater than 0, such as 2Gi")
	case volume.Sysprep != nil && (volume.Sysprep.Secret == nil) == (volume.Sysprep.ConfigMap == nil):
		f.invalid(at.Child("sysprep"), volume.Name, "must have exactly one of secret and configMap")
	}
}

func (f *find) disk(at *field.Path, disk *v1.Disk) {
	if disk.LUN != nil && disk.LUN.Reservation && disk.LUN.Bus != v1.DiskBusSCSI && disk.LUN.Bus != "" {
		f.invalid(at.Child("lun", "bus"), disk.LUN.Bus, "persistent reservations are commands of SCSI: use scsi")
	}
}

func (f *find) interfaces(p *field.Path) {
	indexes := map[int]bool{}
	for i := range f.spec.Domain.Devices.Interfaces {
		iface, at := &f.spec.Domain.Devices.Interfaces[i], p.Index(i)
		if n := bindings(&iface.InterfaceBindingMethod); n > 1 {
			f.invalid(at, iface.Name, "has %d bindings and can have one: keep one of them", n)
		}
		for j, port := range iface.Ports {
			if port.Port > maxPort {
				f.invalid(at.Child("ports").Index(j).Child("port"), port.Port, "must be from 1 to %d", maxPort)
			}
		}
		switch index := iface.ACPIIndex; {
		case index < 0 || index > maxACPIIndex:
			f.invalid(at.Child("acpiIndex"), index, "must be from 1 to %d", maxACPIIndex)
		case index > 0 && indexes[index]:
			f.invalid(at.Child("acpiIndex"), index, "belongs to another interface already")
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

func (f *find) network(at *field.Path, pod *v1.PodNetwork) {
	if pod == nil {
		return
	}
	if _, err := masquerade.IPv4(pod.VMNetworkCIDR); err != nil {
		f.invalid(at.Child("pod", "vmNetworkCIDR"), pod.VMNetworkCIDR, "%v", err)
	}
	if _, err := masquerade.IPv6(pod.VMIPv6NetworkCIDR); err != nil {
		f.invalid(at.Child("pod", "vmIPv6NetworkCIDR"), pod.VMIPv6NetworkCIDR, "%v", err)
	}
}

func (f *find) watchdog(p *field.Path) {
	dog := f.spec.Domain.Devices.Watchdog
	if dog == nil {
		return
	}
	check := func(model string, action v1.WatchdogAction) {
		if !slices.Contains(watchdogActions, action) {
			f.invalid(p.Child(model, "action"), action, "must be one of poweroff, reset, shutdown")
		}
	}
	if dog.I6300ESB != nil {
		check("i6300esb", dog.I6300ESB.Action)
	}
	if dog.Diag288 != nil {
		check("diag288", dog.Diag288.Action)
	}
}

func (f *find) kernelBoot(p *field.Path) {
	fw := f.spec.Domain.Firmware
	if fw == nil || fw.KernelBoot == nil || fw.KernelBoot.Container == nil {
		return
	}
	boot := fw.KernelBoot
	if boot.Container.KernelPath == "" && boot.KernelArgs != "" {
		f.invalid(p.Child("kernelArgs"), boot.KernelArgs, "go to a kernel: set container.kernelPath as well")
	}
}
