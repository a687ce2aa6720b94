// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Reasons of the status of a hotplugged volume or a utility volume. KubeVirt's.
const (
	// ReasonVolumeMounted: the volume is in the launcher Pod, as its message says.
	ReasonVolumeMounted = "VolumeMountedToPod"
	// ReasonHotplugFailed: the volume could not be mounted in the launcher Pod or unmounted, or attached to the guest, or
	// the guest does not release it.
	ReasonHotplugFailed = "HotplugFailed"
)

// A volume is plugged into a running guest, and unplugged, in these steps. Each is one write of the volume's status.
//
//  1. virt-controller adds the volume to status.volumeStatus, with hotplugVolume: Pending until its claim is bound,
//     then Bound.
//  2. It creates the attachment Pod: AttachedToNode. hotplugVolume.attachPodUID is set once that Pod is ready.
//  3. The agent mounts the volume into the launcher Pod: MountedToPod. If it cannot, it reports that as the reason and
//     the message. With a block device, it begins when the Pod's container is started, but reports this and the next
//     step after attachPodUID is set.
//  4. The agent attaches the disk to the guest: Ready. A utility volume backs no disk and remains MountedToPod. If it
//     is for a memory dump, the agent has libvirt write the guest's memory to it: MemoryDumpInProgress, then
//     MemoryDumpCompleted or MemoryDumpFailed.
//  5. The volume leaves the VMI's spec, or its claim changes there: see IsWanted. The agent detaches and unmounts it:
//     UnMountedFromPod.
//  6. virt-controller deletes the attachment Pod: Detaching. It removes the volume from the list when the Pod is gone.
//
// In the steps 1 to 3, a volume that is no longer wanted goes to step 5 or, while no attachment Pod was created, to 6.
// A volume that is wanted again after step 5 still passes step 6, and starts anew with 1.

// hotplugNext are the phases that may follow each phase of a hotplugged volume while the VMI is Live.
var hotplugNext = map[v1.VolumePhase][]v1.VolumePhase{
	"":                             {v1.VolumePending, v1.VolumeBound, v1.HotplugVolumeAttachedToNode, v1.HotplugVolumeDetaching},
	v1.VolumePending:               {v1.VolumeBound, v1.HotplugVolumeAttachedToNode, v1.HotplugVolumeDetaching},
	v1.VolumeBound:                 {v1.VolumePending, v1.HotplugVolumeAttachedToNode, v1.HotplugVolumeDetaching},
	v1.HotplugVolumeAttachedToNode: {v1.HotplugVolumeMounted, v1.VolumeReady, v1.HotplugVolumeUnMounted},
	v1.HotplugVolumeMounted:        {v1.VolumeReady, v1.MemoryDumpVolumeInProgress, v1.HotplugVolumeUnMounted},
	v1.VolumeReady:                 {v1.HotplugVolumeMounted, v1.HotplugVolumeUnMounted},
	v1.MemoryDumpVolumeInProgress:  {v1.MemoryDumpVolumeCompleted, v1.MemoryDumpVolumeFailed},
	v1.MemoryDumpVolumeCompleted:   {v1.HotplugVolumeUnMounted},
	v1.MemoryDumpVolumeFailed:      {v1.HotplugVolumeUnMounted},
	v1.HotplugVolumeUnMounted:      {v1.HotplugVolumeDetaching},
	v1.HotplugVolumeDetaching:      {},
}

// IsHotplugged reports whether a volume's status is that of a hotplugged volume. Other volumes are in the launcher Pod
// from its start, whatever the spec has.
func IsHotplugged(volume *v1.VolumeStatus) bool { return volume != nil && volume.HotplugVolume != nil }

// FindVolume returns the status of a volume, or nil.
func FindVolume(status *v1.VirtualMachineInstanceStatus, name string) *v1.VolumeStatus {
	for i := range status.VolumeStatus {
		if status.VolumeStatus[i].Name == name {
			return &status.VolumeStatus[i]
		}
	}
	return nil
}

// FindUtility returns the utility volume of a name, or nil.
func FindUtility(spec *v1.VirtualMachineInstanceSpec, name string) *v1.UtilityVolume {
	for i := range spec.UtilityVolumes {
		if spec.UtilityVolumes[i].Name == name {
			return &spec.UtilityVolumes[i]
		}
	}
	return nil
}

// FindDisk returns a disk of a spec, or nil.
func FindDisk(spec *v1.VirtualMachineInstanceSpec, name string) *v1.Disk {
	disks := spec.Domain.Devices.Disks
	if i := slices.IndexFunc(disks, func(d v1.Disk) bool { return d.Name == name }); i >= 0 {
		return &disks[i]
	}
	return nil
}

// IsWanted reports whether the guest, or its launcher Pod, is to have the hotplugged volume of a status: the VMI's spec
// has it, with the same claim, and its removal has not begun. If not, the agent detaches it and virt-controller removes
// its attachment Pod. A volume that migrates to another claim is wanted.
func IsWanted(vmi *v1.VirtualMachineInstance, volume *v1.VolumeStatus) bool {
	switch volume.Phase {
	case v1.HotplugVolumeUnMounted, v1.HotplugVolumeDetaching:
		return false
	}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		if v.Name != volume.Name {
			continue
		}
		claim, known := v.WrittenClaim(), volume.PersistentVolumeClaimInfo
		return claim != "" && (known == nil || known.ClaimName == claim || Migrated(&vmi.Status, v.Name) != nil)
	}
	if u := FindUtility(&vmi.Spec, volume.Name); u != nil {
		known := volume.PersistentVolumeClaimInfo
		return known == nil || known.ClaimName == u.ClaimName
	}
	return false
}

// IsAttachedToNode reports whether the agent may mount a hotplugged volume: its attachment Pod is ready.
func IsAttachedToNode(volume *v1.VolumeStatus) bool {
	return IsHotplugged(volume) && volume.HotplugVolume.AttachPodUID != ""
}

// isMounting reports whether the agent is to mount a hotplugged volume. From then on, the reason and the message are
// the agent's until the attachment Pod changes.
func isMounting(volume *v1.VolumeStatus) bool {
	return volume.Phase == v1.HotplugVolumeAttachedToNode && IsAttachedToNode(volume)
}

// SortVolumes sorts the statuses of volumes by name. Both writers of the list sort it, so that neither undoes the
// other's order.
func SortVolumes(volumes []v1.VolumeStatus) {
	slices.SortFunc(volumes, func(a, b v1.VolumeStatus) int { return strings.Compare(a.Name, b.Name) })
}

// checkVolumes returns the parts in which two lists of volumes differ, or an error that names the first one that the
// writer must not change. The order of the lists does not matter.
func checkVolumes(w Writer, stage Stage, before, after []v1.VolumeStatus) ([]string, error) {
	from, to := volumesByName(before), volumesByName(after)
	names := make([]string, 0, len(from)+len(to))
	for name := range from {
		names = append(names, name)
	}
	for name := range to {
		if from[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var changed []string
	for _, name := range names {
		fields, err := checkVolume(w, stage, from[name], to[name])
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", name, err)
		}
		for _, field := range fields {
			if !slices.Contains(changed, field) {
				changed = append(changed, field)
			}
		}
	}
	return changed, nil
}

func volumesByName(list []v1.VolumeStatus) map[string]*v1.VolumeStatus {
	out := make(map[string]*v1.VolumeStatus, len(list))
	for i := range list {
		out[list[i].Name] = &list[i]
	}
	return out
}

// checkVolume is checkVolumes for one volume, of which there is none before or after if it is added or removed.
func checkVolume(w Writer, stage Stage, before, after *v1.VolumeStatus) ([]string, error) {
	hotplugged := IsHotplugged(before) || IsHotplugged(after)
	was, is := valueOf(before), valueOf(after)
	var changed []string
	check := func(field string, owners owners, same bool) error {
		if same {
			return nil
		}
		changed = append(changed, field)
		return mayWrite(w, stage, "status."+field, owners)
	}
	listed := fieldOwners[volumesField]
	if hotplugged {
		listed = attachmentOwners
	}
	for _, part := range []struct {
		field  string
		owners owners
		same   bool
	}{
		{volumesField, listed, (before == nil) == (after == nil)},
		{volumesField, fieldOwners[volumesField], before == nil || after == nil || equality.Semantic.DeepEqual(onlyObserved(was, hotplugged), onlyObserved(is, hotplugged))},
		{claimsField, claimOwners, equality.Semantic.DeepEqual(was.PersistentVolumeClaimInfo, is.PersistentVolumeClaimInfo)},
		{attachmentField, attachmentOwners, equality.Semantic.DeepEqual(was.HotplugVolume, is.HotplugVolume)},
	} {
		if err := check(part.field, part.owners, part.same); err != nil {
			return nil, err
		}
	}
	if !hotplugged || after == nil || was.Phase == is.Phase && was.Reason == is.Reason && was.Message == is.Message {
		return changed, nil
	}
	if stage == Live && isMounting(&was) && isMounting(&is) &&
		was.HotplugVolume.AttachPodUID == is.HotplugVolume.AttachPodUID {
		return append(changed, volumePhase), mayWrite(w, stage, "status."+volumePhase+" "+string(is.Phase), byHandler)
	}
	if err := mayWritePhase(w, stage, was.Phase, is.Phase); err != nil {
		return nil, err
	}
	return append(changed, volumePhase), nil
}

// mayWritePhase checks a change of the phase of a hotplugged volume, or of its reason or message alone.
func mayWritePhase(w Writer, stage Stage, before, after v1.VolumePhase) error {
	field := "status." + volumePhase
	if stage != Live {
		return mayWrite(w, stage, field, byController)
	}
	owner, known := volumePhaseOwners[after]
	if !known {
		return fmt.Errorf("%s %s is not a phase of a hotplugged volume: %w", field, after, ErrNotOwner)
	}
	if err := mayWrite(w, stage, field+" "+string(after), owners{owner, owner, owner}); err != nil {
		return err
	}
	if before != after && !slices.Contains(hotplugNext[before], after) {
		return fmt.Errorf("%s cannot change from %q to %q: %w", field, before, after, ErrNotOwner)
	}
	return nil
}

func valueOf(volume *v1.VolumeStatus) v1.VolumeStatus {
	if volume == nil {
		return v1.VolumeStatus{}
	}
	return *volume
}

// onlyObserved returns of a volume's status what the process that observes the guest writes.
func onlyObserved(volume v1.VolumeStatus, hotplugged bool) v1.VolumeStatus {
	volume.PersistentVolumeClaimInfo, volume.HotplugVolume = nil, nil
	if hotplugged {
		volume.Phase, volume.Reason, volume.Message = "", "", ""
	}
	return volume
}

// Volumes migrate to other claims while their guest runs in these steps, each of which is one write:
//
//  1. status.migratedVolumes names the claims from which and to which they migrate,
//  2. spec.volumes names the new claims,
//  3. a migration transfers the disks, and TransferOwnership or TakeOwnership empties status.migratedVolumes as it
//     changes the owner.
//
// So as long as the list is not empty the guest uses the old claims, whatever the spec has. A change is reverted in the
// same order: first the spec, then the list, and neither during a migration.

// IsBlockClaim reports whether a claim is a block device and not a file system.
func IsBlockClaim(claim *corev1.PersistentVolumeClaim) bool {
	return ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock
}

// IsBlock is IsBlockClaim for what a volume's status has of its claim.
func IsBlock(claim *v1.PersistentVolumeClaimInfo) bool {
	return claim != nil && claim.VolumeMode != nil && *claim.VolumeMode == corev1.PersistentVolumeBlock
}

// ClaimBytes returns the size of the disk on a claim: the smaller of capacity and request, as in KubeVirt, so that the
// disk can be restored to another volume of the requested size. A claim that is not bound has no capacity yet. 0 means
// that the claim has neither.
func ClaimBytes(capacity, requests corev1.ResourceList) int64 {
	size := capacity.Storage().Value()
	if request := requests.Storage().Value(); request > 0 && (size == 0 || request < size) {
		return request
	}
	return size
}

// MovesVolumes reports whether volumes of the guest are to migrate to other claims and have not done so.
func MovesVolumes(status *v1.VirtualMachineInstanceStatus) bool {
	return len(status.MigratedVolumes) > 0
}

// Migrated returns how a volume is to migrate, or nil if it is not.
func Migrated(status *v1.VirtualMachineInstanceStatus, volume string) *v1.StorageMigratedVolumeInfo {
	for i := range status.MigratedVolumes {
		if status.MigratedVolumes[i].VolumeName == volume {
			return &status.MigratedVolumes[i]
		}
	}
	return nil
}

// NamesDestinations reports whether the spec names the new claim of each volume that is to migrate. Between the first
// two steps it does not, and the target's Pod would be rendered with the old claims.
func NamesDestinations(vmi *v1.VirtualMachineInstance) bool {
	named := 0
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		moved := Migrated(&vmi.Status, v.Name)
		if moved == nil {
			continue
		}
		if moved.DestinationPVCInfo == nil || moved.DestinationPVCInfo.ClaimName != v.WrittenClaim() {
			return false
		}
		named++
	}
	return named == len(vmi.Status.MigratedVolumes)
}

// Migratability returns the condition by which the guest can migrate or not, or nil if that is not known:
// LiveMigratable, or StorageLiveMigratable while its volumes are to migrate.
func Migratability(status *v1.VirtualMachineInstanceStatus) *v1.VirtualMachineInstanceCondition {
	if MovesVolumes(status) {
		return FindCondition(status, v1.VirtualMachineInstanceIsStorageLiveMigratable)
	}
	return FindCondition(status, v1.VirtualMachineInstanceIsMigratable)
}

// settleVolumes records that the guest uses the new claims of its volumes.
func settleVolumes(status *v1.VirtualMachineInstanceStatus) {
	if !MovesVolumes(status) {
		return
	}
	for i := range status.VolumeStatus {
		if moved := Migrated(status, status.VolumeStatus[i].Name); moved != nil {
			status.VolumeStatus[i].PersistentVolumeClaimInfo = moved.DestinationPVCInfo
		}
	}
	status.MigratedVolumes = nil
	RemoveCondition(status, v1.VirtualMachineInstanceVolumesChange)
}
