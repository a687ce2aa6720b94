// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
)

// restoreTarget writes the restored spec to the target, or creates the target. The annotation that is part of the same
// write ends this stage.
func restoreTarget(s *scope) (bool, error) {
	if s.Target != nil {
		s.step.Update = append(s.step.Update, s.written)
	} else {
		s.step.Create = append(s.step.Create, s.written)
	}
	return s.updatingTarget(false)
}

// changedTarget returns the target with the spec of the snapshot. It keeps its metadata and its run strategy, except
// that running becomes false: the user starts a restored VM.
func (s *scope) changedTarget() *v1.VirtualMachine {
	vm := s.Target.DeepCopy()
	vm.Spec = s.spec()
	vm.Spec.Running, vm.Spec.RunStrategy = s.Target.Spec.Running, s.Target.Spec.RunStrategy
	if vm.Spec.Running != nil {
		vm.Spec.Running = ptr.To(false)
	}
	metav1.SetMetaDataAnnotation(&vm.ObjectMeta, snapshot.LastRestoreAnnotation, s.mark())
	return vm
}

// newTarget returns a VM that does not exist yet, halted, with the patches applied.
func (s *scope) newTarget() (*v1.VirtualMachine, error) {
	source := s.source()
	vm := &v1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Restore.Namespace, Name: s.Restore.Spec.Target.Name,
			Labels: maps.Clone(source.Labels), Annotations: maps.Clone(source.Annotations),
		},
		Spec: s.spec(),
	}
	vm.Spec.Running, vm.Spec.RunStrategy = nil, ptr.To(v1.RunStrategyHalted)
	if source.Spec.Running != nil {
		vm.Spec.Running, vm.Spec.RunStrategy = ptr.To(false), nil
	}
	s.identify(vm)
	// As in KubeVirt, patches can rely on annotations being present.
	metav1.SetMetaDataAnnotation(&vm.ObjectMeta, snapshot.LastRestoreAnnotation, s.mark())
	vm, err := s.patched(vm)
	if err != nil {
		return nil, err
	}
	// This annotation describes the VM of which the snapshot was taken, so it would mislead the next kubectl apply. It is
	// removed after the patches, which may remove it themselves.
	delete(vm.Annotations, corev1.LastAppliedConfigAnnotation)
	delete(vm.Annotations, firmware.IdentityAnnotation)
	if vm.Name != source.Name {
		delete(vm.Annotations, v1.ControllerAPIStorageVersionObservedAnnotation)
	}
	metav1.SetMetaDataAnnotation(&vm.ObjectMeta, snapshot.LastRestoreAnnotation, s.mark()) // A patch may have removed it.
	return vm, s.checkShared(vm)
}

// identify gives a VM that is created again under its name the identity of the former guest: what the snapshot records
// of it or, in one of an earlier version or of KubeVirt, that which was derived from the former VM. A VM with another
// name gets its own.
func (s *scope) identify(vm *v1.VirtualMachine) {
	source := s.source()
	if !s.targetsSource() {
		delete(vm.Annotations, firmware.RecordAnnotation)
		return
	}
	record, recorded := firmware.RecordOf(vm.Namespace, vm.Name, source.Annotations)
	if !recorded {
		from := firmware.FromName // KubeVirt has taken the snapshot.
		if firmware.Identity(source.Annotations[firmware.IdentityAnnotation]) == firmware.FromUID {
			from = firmware.FromUID
		}
		record = firmware.Derive(vm.Namespace, vm.Name, source.UID, from)
	}
	record.Annotate(&vm.ObjectMeta)
}

// spec returns the spec of the snapshot's VM with the restored volumes and revisions.
func (s *scope) spec() v1.VirtualMachineSpec {
	spec := *s.source().Spec.DeepCopy()
	spec.DataVolumeTemplates = s.templates()
	if len(spec.DataVolumeTemplates) == 0 {
		spec.DataVolumeTemplates = nil
	}
	template := &spec.Template.Spec
	template.Volumes = slices.DeleteFunc(template.Volumes, func(v v1.Volume) bool { return v.MemoryDump != nil })
	for i := range template.Volumes {
		s.restoreSource(&template.Volumes[i])
	}
	for _, class := range reference.Classes {
		if matcher := class.MatcherOf(&spec); matcher != nil && matcher.RevisionName != "" {
			matcher.RevisionName = restoredRevision(s.Restore, matcher.RevisionName)
		}
	}
	return spec
}

// restoreSource makes a volume use the restored claim. A DataVolume for which the VM has no template is not restored;
// the volume then uses the claim itself. KubeVirt does so even if the claim is restored in place, so that the spec
// differs from the one in a user's repository.
func (s *scope) restoreSource(vmVolume *v1.Volume) {
	index := slices.IndexFunc(s.volumes, func(v volume) bool { return v.VolumeName == vmVolume.Name && !v.state })
	switch {
	case index < 0:
	case vmVolume.PersistentVolumeClaim != nil:
		vmVolume.PersistentVolumeClaim.ClaimName = s.volumes[index].claim
	case vmVolume.DataVolume != nil && s.volumes[index].dataVolume != "":
		vmVolume.DataVolume.Name = s.volumes[index].dataVolume
	case vmVolume.DataVolume != nil:
		claim := &v1.PersistentVolumeClaimVolumeSource{Hotpluggable: vmVolume.DataVolume.Hotpluggable}
		claim.ClaimName = s.volumes[index].claim
		vmVolume.VolumeSource = v1.VolumeSource{PersistentVolumeClaim: claim}
	}
}

// checkShared returns an error if a new VM with another name would write to a disk of the VM in the snapshot, because
// that disk is not in the snapshot. KubeVirt creates such a VM.
func (s *scope) checkShared(vm *v1.VirtualMachine) error {
	if s.targetsSource() || vm.Spec.Template == nil {
		return nil
	}
	restored := map[string]bool{}
	for i := range s.volumes {
		restored[s.volumes[i].claim] = true
	}
	template := &vm.Spec.Template.Spec
	for i := range template.Volumes {
		vmVolume := &template.Volumes[i]
		claim := vmVolume.WrittenClaim()
		if claim == "" || restored[claim] || s.Claims[claim] == nil || !s.hasClaim(claim) ||
			!writes(template, vmVolume.Name) {
			continue
		}
		return fmt.Errorf("volume %s is not in the snapshot, and VirtualMachine %s would write to PersistentVolumeClaim %s of VirtualMachine %s: "+
			"remove the volume and its disk in patches, or give it another claim", vmVolume.Name, vm.Name, claim,
			s.source().Name)
	}
	return nil
}

// hasClaim reports whether the VM in the snapshot has a claim.
func (s *scope) hasClaim(claim string) bool {
	return slices.ContainsFunc(s.source().Spec.Template.Spec.Volumes,
		func(v v1.Volume) bool { return v.WrittenClaim() == claim })
}

// writes reports whether the guest may write to a volume that is not meant to be shared.
func writes(spec *v1.VirtualMachineInstanceSpec, name string) bool {
	disk := instancetype.DiskOf(spec, name)
	return disk != nil && disk.CDRom == nil && !ptr.Deref(disk.Shareable, false) &&
		(disk.Disk == nil || !disk.Disk.ReadOnly) &&
		(disk.LUN == nil || !disk.LUN.ReadOnly)
}

// Revisions returns the ControllerRevisions of a content with its VM's instance type and preference. From is the name
// of the snapshot's revision, and To that of the restored VM's.
func Revisions(
	vmRestore *v1beta1.VirtualMachineRestore, content *v1beta1.VirtualMachineSnapshotContent,
) []capture.RevisionCopy {
	if content == nil || content.Spec.Source.VirtualMachine == nil {
		return nil
	}
	var out []capture.RevisionCopy
	for _, class := range reference.Classes {
		if matcher := class.MatcherOf(&content.Spec.Source.VirtualMachine.Spec); matcher != nil &&
			matcher.RevisionName != "" {
			out = append(out, capture.RevisionCopy{From: matcher.RevisionName,
				To: restoredRevision(vmRestore, matcher.RevisionName)})
		}
	}
	return out
}

func restoredRevision(vmRestore *v1beta1.VirtualMachineRestore, name string) string {
	return capture.Rename(name, vmRestore.Spec.VirtualMachineSnapshotName, vmRestore.Spec.Target.Name)
}

// restoreRevisions creates the restored VM's revisions. Their data is immutable, so an existing revision with other
// data is deleted first.
func restoreRevisions(s *scope) (bool, error) {
	done := true
	for _, names := range Revisions(s.Restore, s.Content) {
		from, live := s.Revisions[names.From], s.Revisions[names.To]
		switch {
		case live == nil:
			var uid types.UID
			var owner *metav1.OwnerReference
			if s.Target != nil {
				uid, owner = s.Target.UID, metav1.NewControllerRef(s.Target, v1.VirtualMachineGroupVersionKind)
			}
			s.step.Create = append(s.step.Create, capture.CopyRevision(from, s.Restore.Namespace, names.To, uid, owner))
			done = false
		case live.DeletionTimestamp != nil:
			done, s.step.RequeueAfter = false, retry // Revisions are not watched.
		case !capture.SameData(from, live):
			s.step.Delete, done = append(s.step.Delete, live), false
		}
	}
	return s.updatingTarget(done)
}
