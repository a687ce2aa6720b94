// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package restore decides what a VirtualMachineRestore does next: a pure function from the restore, the content of the
// snapshot and the live objects to the objects that are to be created, changed and deleted, and to the restore's
// status. virt-controller applies the result, or a part of it, and calls the function again, until the restore is
// complete. The progress is read from the live objects. ADR 0086 explains the reasons. Names, reasons and messages are
// KubeVirt's (pkg/storage/snapshot) unless a comment says otherwise.
package restore

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/internal/podspec"
)

// checkPlan returns an error if the restore could not be completed. KubeVirt detects some of these errors only after it
// has deleted claims.
func checkPlan(s *scope) (bool, error) {
	switch policy := s.ownership(); policy {
	case v1beta1.VolumeOwnershipPolicyVm, v1beta1.VolumeOwnershipPolicyNone:
	default:
		return false, fmt.Errorf("volume ownership policy %q doesn't exist", policy)
	}
	for i := range s.volumes {
		if err := s.checkVolume(&s.volumes[i]); err != nil {
			return false, err
		}
	}
	for _, names := range Revisions(s.Restore, s.Content) {
		switch from := s.Revisions[names.From]; {
		case from == nil:
			return false, fmt.Errorf("ControllerRevision %s/%s of the snapshot does not exist", s.Restore.Namespace, names.From)
		case s.Target == nil && !reference.IsRevision(from.Labels):
			// A copy would have no owner, and would not be recognized.
			return false, fmt.Errorf("ControllerRevision %s/%s of the snapshot contains no instance type and no preference",
				s.Restore.Namespace, names.From)
		}
		// KubeVirt replaces the revision regardless of its owner.
		if live := s.Revisions[names.To]; live != nil && !s.mayOwn(live) {
			return false, fmt.Errorf("ControllerRevision %s/%s exists already and belongs to another object",
				s.Restore.Namespace, names.To)
		}
	}
	if done, err := s.checkTarget(); err != nil || !done {
		return false, err
	}
	// This comes last: a class may be created again, and then it is better to know about what never changes.
	err := s.checkClasses()
	return err == nil, err
}

// checkClasses returns an error if the storage class of a claim that is to be created does not exist: nothing would
// provision it, and the claim that it replaces would be gone.
func (s *scope) checkClasses() error {
	for i := range s.volumes {
		if s.isRestored(s.volumes[i]) {
			continue
		}
		if _, err := s.bindingMode(&s.volumes[i].PersistentVolumeClaim.Spec); err != nil {
			return err
		}
	}
	return nil
}

// checkTarget determines what the target will be. The API server checks it with each change until the first claim is
// restored. If a claim was deleted only before the last check, the snapshot still has its content.
func (s *scope) checkTarget() (bool, error) {
	if s.Target != nil {
		s.written = s.changedTarget()
	} else {
		var err error
		if s.written, err = s.newTarget(); err != nil {
			return false, err
		}
		if len(s.volumes) == 0 {
			return true, nil // The first change is the creation of the VM.
		}
	}
	if !slices.ContainsFunc(s.volumes, s.isRestored) {
		s.step.Check = s.written
	}
	return true, nil
}

// isRestored reports whether the restored claim of a volume exists.
func (s *scope) isRestored(v volume) bool {
	live := s.Claims[v.claim]
	return live != nil && s.isFromRestore(live.Annotations)
}

func (s *scope) checkVolume(v *volume) error {
	live := s.Claims[v.claim]
	if s.isRestored(*v) {
		return nil
	}
	if s.VolumeSnapshots[*v.VolumeSnapshotName] == nil {
		return fmt.Errorf("missing volumeSnapshot %s", *v.VolumeSnapshotName)
	}
	kind := ""
	switch dv := s.DataVolumes[v.claim]; {
	case s.replaces(v.VolumeBackup, v.claim):
	case live != nil:
		kind = "PersistentVolumeClaim" // In KubeVirt, the VM would use this claim.
	case dv != nil && (v.template >= 0 || s.isForeign(dv)):
		kind = "DataVolume"
	}
	if kind == "" {
		return nil
	}
	return fmt.Errorf("%s %s exists already: delete it, or give volume %s another name in volumeRestoreOverrides", kind,
		v.claim, v.VolumeName)
}

// mayOwn reports whether a revision belongs to the target, or was created by this restore for a target that did not
// exist. Any other revision without an owner belongs to a user, and is neither adopted nor replaced.
func (s *scope) mayOwn(revision metav1.Object) bool {
	if owner := metav1.GetControllerOf(revision); owner != nil {
		return s.Target != nil && owner.UID == s.Target.UID
	}
	return reference.IsRevision(revision.GetLabels())
}

// restoreState labels the restored claim with the state of TPM and EFI as the VM's state claim, and marks the claim
// that it replaces for deletion. The VM is locked, so it cannot start while both claims or none have the label. If the
// snapshot has no such claim, the VM keeps its current one.
func restoreState(s *scope) (bool, error) {
	i := slices.IndexFunc(s.volumes, func(v volume) bool { return v.state })
	if i < 0 {
		return true, nil
	}
	target, done := podspec.LabelValue(s.Restore.Spec.Target.Name), true
	for _, live := range s.sortedClaims() {
		restored := live.Name == s.volumes[i].claim
		if restored == (live.Labels[v1.PersistentStateLabel] == target) || !restored && s.isForeign(live) {
			continue
		}
		changed := live.DeepCopy()
		if restored {
			metav1.SetMetaDataLabel(&changed.ObjectMeta, v1.PersistentStateLabel, target)
		} else {
			delete(changed.Labels, v1.PersistentStateLabel)
			metav1.SetMetaDataLabel(&changed.ObjectMeta, snapshot.RestoreCleanupStateLabel,
				capture.StateVolume(s.Restore.Spec.Target.Name))
		}
		s.step.Update, done = append(s.step.Update, changed), false
	}
	return s.updatingTarget(done)
}

// isForeign reports whether a claim belongs to an object other than the target, such as an earlier VM of its name.
// Users can set labels, and the VM does not start with such a claim.
func (s *scope) isForeign(claim metav1.Object) bool {
	owner := metav1.GetControllerOf(claim)
	return owner != nil && (s.Target == nil || owner.UID != s.Target.UID)
}

// sortedClaims returns the claims in a stable order.
func (s *scope) sortedClaims() []*corev1.PersistentVolumeClaim {
	out := make([]*corev1.PersistentVolumeClaim, 0, len(s.Claims))
	for _, claim := range s.Claims {
		out = append(out, claim)
	}
	slices.SortFunc(out, func(a, b *corev1.PersistentVolumeClaim) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// adopt makes a VM that this restore has created the owner of its claims and revisions, which were created earlier.
func adopt(s *scope) (bool, error) {
	owner := metav1.NewControllerRef(s.Target, v1.VirtualMachineGroupVersionKind)
	done := true
	for _, claim := range s.sortedClaims() {
		if !s.isFromRestore(claim.Annotations) || claim.Annotations[snapshot.RestoreOwnedByVMAnnotation] != s.Restore.Name {
			continue
		}
		owned := claim.DeepCopy()
		delete(owned.Annotations, snapshot.RestoreOwnedByVMAnnotation)
		if metav1.GetControllerOf(owned) == nil {
			owned.OwnerReferences = append(owned.OwnerReferences, *owner)
		}
		s.step.Update, done = append(s.step.Update, owned), false
	}
	for _, names := range Revisions(s.Restore, s.Content) {
		revision := s.Revisions[names.To]
		if revision == nil || metav1.GetControllerOf(revision) != nil || !s.mayOwn(revision) {
			continue
		}
		owned := revision.DeepCopy()
		owned.OwnerReferences = append(owned.OwnerReferences, *owner)
		metav1.SetMetaDataLabel(&owned.ObjectMeta, v1.CreatedByLabel, string(s.Target.UID))
		s.step.Update, done = append(s.step.Update, owned), false
	}
	return s.updatingTarget(done)
}

// deleteObsolete deletes what the restored target does not use any more: the DataVolumes of its former templates, with
// their claims, and the state claim that was replaced.
func deleteObsolete(s *scope) (bool, error) {
	done := true
	if s.NoDataVolumes != nil && len(s.step.Status.DeletedDataVolumes) > 0 {
		return false, s.NoDataVolumes
	}
	for _, name := range s.step.Status.DeletedDataVolumes {
		dv := s.DataVolumes[name]
		if dv == nil || !s.isObsolete(dv, name) {
			continue
		}
		done = false
		if dv.DeletionTimestamp == nil {
			s.step.Delete = append(s.step.Delete, dv)
		}
	}
	for _, claim := range s.sortedClaims() {
		if claim.Labels[snapshot.RestoreCleanupStateLabel] != capture.StateVolume(s.Target.Name) || s.isForeign(claim) {
			continue
		}
		done = false
		if claim.DeletionTimestamp == nil {
			s.step.Delete = append(s.step.Delete, claim)
		}
	}
	return s.updatingTarget(done)
}

// isObsolete reports whether a DataVolume belongs to the target and the target does not refer to it. It may refer to it
// again, because a user may have changed the target after the restore.
func (s *scope) isObsolete(dv metav1.Object, name string) bool {
	if owner := metav1.GetControllerOf(dv); owner != nil && owner.UID != s.Target.UID {
		return false
	}
	spec := &s.Target.Spec
	used := slices.ContainsFunc(spec.DataVolumeTemplates,
		func(t v1.DataVolumeTemplateSpec) bool { return t.Name == name }) ||
		spec.Template != nil &&
			slices.ContainsFunc(spec.Template.Spec.Volumes, func(v v1.Volume) bool { return v.WrittenClaim() == name })
	return !used
}
