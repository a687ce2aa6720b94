// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/hotplug"
	"github.com/vireo-project/vireo/internal/specsupport"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// validateHotplug returns the errors of a change of a VMI's disks and volumes, which only our components make. The
// rules and the messages are KubeVirt's, source: kubevirt/kubevirt pkg/storage/admitters, except that a new disk must
// also comply with the rules of a new VMI: no VM's template was validated if the VMI has no VM.
func validateHotplug(before, after *v1.VirtualMachineInstance, config clusterconfig.Config) field.ErrorList {
	path := field.NewPath("spec")
	h := &hotplugCheck{
		volumes: path.Child("volumes"), disks: path.Child("domain", "devices", "disks"), status: &after.Status,
		spec: &after.Spec, config: config,
		oldDisks: disksByName(&before.Spec), newDisks: disksByName(&after.Spec),
	}
	if equality.Semantic.DeepEqual(before.Spec.Volumes, after.Spec.Volumes) &&
		maps.EqualFunc(h.oldDisks, h.newDisks, sameDisk) {
		return nil
	}
	h.checkNumber()
	h.checkPermanent(h.split(&before.Spec, h.isPermanent), h.split(&after.Spec, h.isPermanent))
	h.checkHotplugged(h.split(&before.Spec, h.isHotplugged), h.split(&after.Spec, h.isHotplugged))
	return h.errs
}

// hotplugCheck collects the errors of one change.
type hotplugCheck struct {
	volumes, disks     *field.Path
	status             *v1.VirtualMachineInstanceStatus
	spec               *v1.VirtualMachineInstanceSpec
	config             clusterconfig.Config
	oldDisks, newDisks map[string]*v1.Disk
	errs               field.ErrorList
}

func disksByName(spec *v1.VirtualMachineInstanceSpec) map[string]*v1.Disk {
	out := map[string]*v1.Disk{}
	for i := range spec.Domain.Devices.Disks {
		out[spec.Domain.Devices.Disks[i].Name] = &spec.Domain.Devices.Disks[i]
	}
	return out
}

func sameDisk(a, b *v1.Disk) bool { return equality.Semantic.DeepEqual(a, b) }

// isPermanent reports whether a volume is in the launcher Pod. A volume of which the status has nothing yet is
// permanent unless it is hotpluggable.
func (h *hotplugCheck) isPermanent(volume *v1.Volume) bool {
	if status := vmistatus.FindVolume(h.status, volume.Name); status != nil {
		return !vmistatus.IsHotplugged(status)
	}
	return !volume.IsHotpluggable()
}

func (h *hotplugCheck) isHotplugged(volume *v1.Volume) bool { return !h.isPermanent(volume) }

// split returns the volumes of one of the two kinds, except for those that migrate to other claims.
func (h *hotplugCheck) split(spec *v1.VirtualMachineInstanceSpec, belongs func(*v1.Volume) bool) map[string]*v1.Volume {
	out := map[string]*v1.Volume{}
	for i := range spec.Volumes {
		volume := &spec.Volumes[i]
		if belongs(volume) && vmistatus.Migrated(h.status, volume.Name) == nil {
			out[volume.Name] = volume
		}
	}
	return out
}

// checkNumber checks that each disk and shared file system has a volume, and the reverse. A CD-ROM drive may be empty.
func (h *hotplugCheck) checkNumber() {
	has := map[string]bool{}
	declared := 0
	for i := range h.spec.Volumes {
		has[h.spec.Volumes[i].Name] = true
		if h.spec.Volumes[i].MemoryDump == nil {
			declared++
		}
	}
	required := map[string]bool{}
	for name, disk := range h.newDisks {
		if disk.CDRom == nil || has[name] {
			required[name] = true
		}
	}
	for i := range h.spec.Domain.Devices.Filesystems {
		required[h.spec.Domain.Devices.Filesystems[i].Name] = true
	}
	if declared != len(required) {
		h.reject(h.volumes, declared, "mismatch between volumes declared (%d) and required (%d)", declared, len(required))
	}
}

func (h *hotplugCheck) checkPermanent(before, after map[string]*v1.Volume) {
	if len(before) != len(after) {
		h.reject(h.volumes, len(after), "Number of permanent volumes has changed")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		old := before[name]
		switch {
		case old == nil:
			h.reject(h.volumes, name, "permanent volume %s, not found", name)
		case !equality.Semantic.DeepEqual(old, after[name]):
			h.reject(h.volumes, name, "permanent volume %s, changed", name)
		case !sameDisk(h.oldDisks[name], h.newDisks[name]):
			h.reject(h.disks, name, "permanent disk %s, changed", name)
		}
	}
}

func (h *hotplugCheck) checkHotplugged(before, after map[string]*v1.Volume) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		volume, old, disk := after[name], before[name], h.newDisks[name]
		switch {
		case old == nil:
			h.checkNew(volume, disk)
		case !equality.Semantic.DeepEqual(old, volume):
			h.reject(h.volumes, name, "hotplug volume %s, changed", name)
		case disk == nil:
			h.reject(h.volumes, name, "volume %s doesn't have a matching disk", name)
		case !sameDisk(h.oldDisks[name], disk):
			h.reject(h.disks, name, "hotplug disk %s, changed", name)
		}
	}
}

// checkNew checks a volume that is plugged, or inserted into a CD-ROM drive of the guest.
func (h *hotplugCheck) checkNew(volume *v1.Volume, disk *v1.Disk) {
	switch {
	case volume.WrittenClaim() == "":
		h.reject(h.volumes, volume.Name, "volume %s is not a PVC or DataVolume", volume.Name)
	case disk == nil:
		h.reject(h.disks, volume.Name, "disk %s does not exist", volume.Name)
	case h.spec.Domain.Devices.DisableHotplug:
		h.reject(h.volumes, volume.Name, "volume %s cannot be plugged: spec.domain.devices.disableHotplug is set",
			volume.Name)
	case disk.CDRom != nil && h.oldDisks[volume.Name] != nil:
		if !sameDisk(h.oldDisks[volume.Name], disk) {
			h.reject(h.disks, volume.Name, "hotplug disk %s, changed", volume.Name)
		}
	default:
		if message := hotplug.Problem(disk); message != "" {
			h.reject(h.disks, volume.Name, "%s", message)
			return
		}
		h.checkDisk(disk.Name)
	}
}

// checkDisk checks a new disk like one of a new VMI, and that we can plug it.
func (h *hotplugCheck) checkDisk(name string) {
	c := &check{path: field.NewPath("spec"), spec: h.spec, config: h.config}
	disks := h.spec.Domain.Devices.Disks
	if c.tooMany(h.disks, len(disks)) {
		h.errs = append(h.errs, c.errs...)
		return
	}
	i := slices.IndexFunc(disks, func(d v1.Disk) bool { return d.Name == name })
	c.disk(h.disks.Index(i), &disks[i], c.volumesByName())
	if disks[i].BootOrder != nil {
		checkBootOrder(c)
	}
	h.errs = append(h.errs, c.errs...)
	for _, err := range slices.Concat(specsupport.Refusals(specsupport.UnimplementedInVMI(c.path, h.spec)),
		specsupport.ImpossibleInVMI(c.path, h.spec)) {
		if strings.HasPrefix(err.Field, h.disks.Index(i).String()) {
			h.errs = append(h.errs, err)
		}
	}
}

func (h *hotplugCheck) reject(path *field.Path, value any, format string, args ...any) {
	h.errs = append(h.errs, field.Invalid(path, value, fmt.Sprintf(format, args...)))
}
