// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hotplug

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Result is how far a running guest follows its template.
type Result struct {
	// Pending reports whether a volume is yet to be plugged or unplugged.
	Pending bool
	// Problem is why a volume of the template cannot be plugged, or "". It takes effect at the next start.
	Problem string
}

// IsLive reports whether a volume of an instance can be unplugged, or plugged if the instance does not have it. One
// that is in the launcher Pod cannot.
func IsLive(vmi *v1.VirtualMachineInstance, name string) bool {
	status := vmistatus.FindVolume(&vmi.Status, name)
	if status != nil {
		return vmistatus.IsHotplugged(status)
	}
	volume := FindVolume(&vmi.Spec, name)
	return volume == nil || volume.IsHotpluggable()
}

// Follow gives a running instance the hotpluggable volumes of a template. A volume that has changed, such as another
// medium for a CD-ROM drive, is removed, and comes back in a later call when the guest no longer has the former one.
func Follow(vmi *v1.VirtualMachineInstance, template *v1.VirtualMachineInstanceSpec) Result {
	template = template.DeepCopy()
	instancetype.AddImplicitDisks(template)
	for _, volume := range slices.Clone(vmi.Spec.Volumes) {
		if IsLive(vmi, volume.Name) && isGone(&volume, FindVolume(template, volume.Name)) {
			Remove(&vmi.Spec, volume.Name)
		}
	}
	var out Result
	for i := range template.Volumes {
		to := &template.Volumes[i]
		if !to.IsHotpluggable() || !IsLive(vmi, to.Name) {
			continue
		}
		status := vmistatus.FindVolume(&vmi.Status, to.Name)
		if FindVolume(&vmi.Spec, to.Name) == nil && status == nil {
			if problem := plug(vmi, to, vmistatus.FindDisk(template, to.Name)); problem != "" {
				out.Problem = problem
				continue
			}
		}
		out.Pending = out.Pending || status == nil || status.Phase != v1.VolumeReady
	}
	for i := range vmi.Status.VolumeStatus {
		status := &vmi.Status.VolumeStatus[i]
		// No template has utility volumes.
		out.Pending = out.Pending || vmistatus.IsHotplugged(status) && FindVolume(&vmi.Spec, status.Name) == nil &&
			vmistatus.FindUtility(&vmi.Spec, status.Name) == nil
	}
	return out
}

// isGone reports whether a template lacks a volume of an instance, or has another one of its name.
func isGone(volume, to *v1.Volume) bool {
	switch {
	case to == nil:
		return true
	case !to.IsHotpluggable():
		// The next start makes it one of the launcher Pod. Until then the guest keeps it.
		return to.WrittenClaim() != volume.WrittenClaim()
	default:
		return !equality.Semantic.DeepEqual(volume.VolumeSource, to.VolumeSource)
	}
}

// plug adds a volume to an instance, and returns why that is impossible, or "".
func plug(vmi *v1.VirtualMachineInstance, volume *v1.Volume, disk *v1.Disk) string {
	if disk == nil {
		return "" // A shared file system has the volume, which is no disk.
	}
	SetDefaults(disk)
	has := vmistatus.FindDisk(&vmi.Spec, disk.Name)
	if has == nil || has.CDRom == nil {
		if problem := Problem(disk); problem != "" {
			return problem
		}
	}
	Add(&vmi.Spec, volume, disk)
	return ""
}

// Equalize removes from the spec that an instance was made from, and from its template, what Follow takes care of. What
// remains different needs a restart.
func Equalize(before, now *v1.VirtualMachineInstanceSpec, vmi *v1.VirtualMachineInstance) {
	for _, name := range hotpluggable(before, now) {
		if !IsLive(vmi, name) || !isPlug(FindVolume(before, name)) || !isPlug(FindVolume(now, name)) {
			continue
		}
		equalizeDisk(before, now, name)
		for _, spec := range []*v1.VirtualMachineInstanceSpec{before, now} {
			spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
		}
	}
}

// hotpluggable returns the names of the volumes that are hotpluggable in one of two specs.
func hotpluggable(specs ...*v1.VirtualMachineInstanceSpec) []string {
	var names []string
	for _, spec := range specs {
		for i := range spec.Volumes {
			if v := &spec.Volumes[i]; v.IsHotpluggable() && !slices.Contains(names, v.Name) {
				names = append(names, v.Name)
			}
		}
	}
	return names
}

// isPlug reports whether a spec has a volume as hotpluggable, or not at all.
func isPlug(volume *v1.Volume) bool { return volume == nil || volume.IsHotpluggable() }

// equalizeDisk removes the disk of a volume from both specs, unless only a restart can change it.
func equalizeDisk(before, now *v1.VirtualMachineInstanceSpec, name string) {
	had, has := vmistatus.FindDisk(before, name), vmistatus.FindDisk(now, name)
	switch {
	case had != nil && has != nil:
		if !equality.Semantic.DeepEqual(had, has) {
			return
		}
	case has != nil: // A volume without a disk gets one at the start, and had another one until now.
		disk := has.DeepCopy()
		SetDefaults(disk)
		if FindVolume(before, name) != nil || Problem(disk) != "" {
			return
		}
	case had != nil:
		if FindVolume(now, name) != nil || had.CDRom != nil {
			return
		}
	}
	for _, spec := range []*v1.VirtualMachineInstanceSpec{before, now} {
		spec.Domain.Devices.Disks = slices.DeleteFunc(spec.Domain.Devices.Disks,
			func(d v1.Disk) bool { return d.Name == name })
	}
}
