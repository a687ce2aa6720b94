// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
)

// volume is a volume to restore.
type volume struct {
	*v1beta1.VolumeBackup
	// claim is the name of the restored claim.
	claim string
	// dataVolume is the name of the DataVolume that owns the restored claim, or "".
	dataVolume string
	// template is the index of the DataVolume's template in the VM of the snapshot, or -1 if it has none.
	template int
	// state reports whether it is the persistent state of TPM and EFI.
	state bool
}

// planVolumes decides on the names of the restored claims, and which DataVolumes are not needed any more. Both are
// written to the status before anything is created or deleted.
func planVolumes(s *scope) (bool, error) {
	for i := range s.Content.Spec.VolumeBackups {
		backup := &s.Content.Spec.VolumeBackups[i]
		if vmVolume := s.volumeOf(backup); vmVolume != nil && vmVolume.MemoryDump != nil {
			continue // A memory dump belongs to a guest that does not exist any more.
		}
		v, err := s.plan(backup)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(s.volumes, func(other volume) bool { return other.claim == v.claim }) {
			return false, fmt.Errorf("volume %s would be restored to PersistentVolumeClaim %s, as another volume", v.VolumeName,
				v.claim)
		}
		s.volumes = append(s.volumes, v)
	}
	status := s.step.Status
	restores, obsolete := s.restores(), s.obsolete()
	if equality.Semantic.DeepEqual(status.Restores, restores) &&
		equality.Semantic.DeepEqual(status.DeletedDataVolumes, obsolete) {
		return true, nil
	}
	status.Restores, status.DeletedDataVolumes = restores, obsolete
	return s.creatingClaims(false)
}

// volumeOf returns the volume of the VM of which this is a backup, or nil for the persistent state.
func (s *scope) volumeOf(backup *v1beta1.VolumeBackup) *v1.Volume {
	volumes := s.source().Spec.Template.Spec.Volumes
	index := slices.IndexFunc(volumes, func(v v1.Volume) bool { return v.Name == backup.VolumeName })
	if index < 0 {
		return nil
	}
	return &volumes[index]
}

func (s *scope) plan(backup *v1beta1.VolumeBackup) (volume, error) {
	vmVolume := s.volumeOf(backup)
	v := volume{VolumeBackup: backup, template: -1, state: vmVolume == nil}
	switch {
	case v.state && backup.PersistentVolumeClaim.Labels[v1.PersistentStateLabel] == "":
		return v, fmt.Errorf("the snapshot has volume %s, but its VirtualMachine does not have it", backup.VolumeName)
	case v.state && !s.targetsSource():
		return v, fmt.Errorf("volume %s contains the state of TPM and EFI of VirtualMachine %s: it can be restored to a VirtualMachine of that name only",
			backup.VolumeName, s.source().Name)
	case backup.VolumeSnapshotName == nil:
		return v, fmt.Errorf("volume %s of the snapshot has no VolumeSnapshot", backup.VolumeName)
	}
	var err error
	if v.claim, err = s.claimName(backup); err != nil {
		return v, err
	}
	// The decision that was made before the first claim was created is kept, because DataVolumes may have changed since.
	for i := range s.step.Status.Restores {
		if known := &s.step.Status.Restores[i]; known.VolumeName == backup.VolumeName {
			v.claim, v.dataVolume = known.PersistentVolumeClaimName, ptr.Deref(known.DataVolumeName, "")
		}
	}
	if vmVolume != nil && vmVolume.DataVolume != nil {
		v.template = slices.IndexFunc(s.source().Spec.DataVolumeTemplates, func(t v1.DataVolumeTemplateSpec) bool {
			return t.Name == vmVolume.DataVolume.Name
		})
	}
	if v.template >= 0 || s.replaces(backup, v.claim) && s.DataVolumes[v.claim] != nil {
		v.dataVolume = v.claim // A DataVolume and its claim have the same name.
	}
	return v, nil
}

// claimName returns the name of the restored claim.
func (s *scope) claimName(backup *v1beta1.VolumeBackup) (string, error) {
	if override := s.override(backup.VolumeName); override != nil && override.RestoreName != "" {
		return override.RestoreName, nil
	}
	switch policy := s.policy(); policy {
	case v1beta1.VolumeRestorePolicyRandomizeNames:
		return fmt.Sprintf("restore-%s-%s", s.Restore.UID, backup.VolumeName), nil
	case v1beta1.VolumeRestorePolicyInPlace:
		return backup.PersistentVolumeClaim.Name, nil
	case v1beta1.VolumeRestorePolicyPrefixTargetName:
		return capture.Join(s.Restore.Spec.Target.Name, backup.VolumeName), nil
	default:
		return "", fmt.Errorf("volume restore policy %q doesn't exist", policy)
	}
}

func (s *scope) policy() v1beta1.VolumeRestorePolicy {
	return ptr.Deref(s.Restore.Spec.VolumeRestorePolicy, v1beta1.VolumeRestorePolicyRandomizeNames)
}

func (s *scope) override(volume string) *v1beta1.VolumeRestoreOverride {
	list := s.Restore.Spec.VolumeRestoreOverrides
	index := slices.IndexFunc(list, func(o v1beta1.VolumeRestoreOverride) bool { return o.VolumeName == volume })
	if index < 0 {
		return nil
	}
	return &list[index]
}

// replaces reports whether a backup is restored under the name of the claim of which it was made, to the VM of which it
// was made. A claim of that name is deleted. KubeVirt deletes any claim that an override names, and the disks of the
// source of a new VM.
func (s *scope) replaces(backup *v1beta1.VolumeBackup, claim string) bool {
	return s.policy() == v1beta1.VolumeRestorePolicyInPlace && claim == backup.PersistentVolumeClaim.Name &&
		s.targetsSource() &&
		s.mayReplace(backup)
}

// mayReplace reports whether the claim of a backup's name may be deleted: it is the claim of which the backup was made,
// it belongs to the same DataVolume, the target or its DataVolume owns it, or the target's last restore has created it.
// Another one may be the disk of another VM. If there is no claim, one may be created for a DataVolume that belongs to
// no other VM.
func (s *scope) mayReplace(backup *v1beta1.VolumeBackup) bool {
	old := &backup.PersistentVolumeClaim
	live, dv := s.Claims[old.Name], s.DataVolumes[old.Name]
	switch {
	case live == nil:
		return dv == nil || !s.isForeign(dv)
	case live.UID == old.UID, sameController(live, old), s.isFromRestore(live.Annotations):
		return true
	case s.Target == nil:
		return false
	}
	last := s.Target.Annotations[snapshot.LastRestoreAnnotation]
	return metav1.IsControlledBy(live, s.Target) ||
		dv != nil && metav1.IsControlledBy(live, dv) && metav1.IsControlledBy(dv, s.Target) ||
		last != "" && live.Annotations[snapshot.LastRestoreAnnotation] == last
}

func sameController(a, b metav1.Object) bool {
	first, second := metav1.GetControllerOf(a), metav1.GetControllerOf(b)
	return first != nil && second != nil && first.UID == second.UID
}

// restores returns the volumes for the status.
func (s *scope) restores() []v1beta1.VolumeRestore {
	out := make([]v1beta1.VolumeRestore, 0, len(s.volumes))
	for i := range s.volumes {
		v := &s.volumes[i]
		restore := v1beta1.VolumeRestore{
			VolumeName: v.VolumeName, PersistentVolumeClaimName: v.claim, VolumeSnapshotName: *v.VolumeSnapshotName,
		}
		if v.dataVolume != "" {
			restore.DataVolumeName = ptr.To(v.dataVolume)
		}
		out = append(out, restore)
	}
	return out
}

// obsolete returns the DataVolumes of the target's templates that the restored target does not have.
func (s *scope) obsolete() []string {
	if s.Target == nil {
		return nil
	}
	kept := map[string]bool{}
	for _, template := range s.templates() {
		kept[template.Name] = true
	}
	var out []string
	for i := range s.Target.Spec.DataVolumeTemplates {
		if name := s.Target.Spec.DataVolumeTemplates[i].Name; !kept[name] {
			out = append(out, name)
		}
	}
	return out
}

// templates returns the DataVolume templates of the restored VM.
func (s *scope) templates() []v1.DataVolumeTemplateSpec {
	out := make([]v1.DataVolumeTemplateSpec, len(s.source().Spec.DataVolumeTemplates))
	for i := range out {
		s.source().Spec.DataVolumeTemplates[i].DeepCopyInto(&out[i])
	}
	for i := range s.volumes {
		if v := &s.volumes[i]; v.template >= 0 {
			out[v.template].Name = v.dataVolume
		}
	}
	return out
}

// mark returns the value by which objects that this restore has created or changed are recognized.
func (s *scope) mark() string { return mark(s.Restore) }

func mark(vmRestore *v1beta1.VirtualMachineRestore) string {
	return vmRestore.Name + "-" + string(vmRestore.UID)
}

// isFromRestore reports whether this restore has created the claim, or changed the VM, with these annotations.
func (s *scope) isFromRestore(annotations map[string]string) bool {
	return annotations[snapshot.LastRestoreAnnotation] == s.mark()
}
