// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/snapshot"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/snapshot/capture"
)

// adopt makes a VM that this restore has created the owner of its claims and revisions, which were created earlier.
func adopt(s *scope) (bool, error) {
	owner := metav1.NewControllerRef(s.Target, v1.VirtualMachineGroupVersionKind)
	done := true
	for _, claim := range s.sortedClaims() {
		if !s.isOurs(claim.Annotations) || claim.Annotations[snapshot.RestoreOwnedByVMAnnotation] != s.Restore.Name {
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

// deleteObsolete deletes what the restored target does not use any more: the DataVolumes of its former templates, with their
// claims, and the state claim that was replaced.
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

// isObsolete reports whether a DataVolume belongs to the target and the target does not refer to it. It may refer to it again, because a
// user may have changed the target after the restore.
func (s *scope) isObsolete(dv metav1.Object, name string) bool {
	if owner := metav1.GetControllerOf(dv); owner != nil && owner.UID != s.Target.UID {
		return false
	}
	spec := &s.Target.Spec
	used := slices.ContainsFunc(spec.DataVolumeTemplates, func(t v1.DataVolumeTemplateSpec) bool { return t.Name == name }) ||
		spec.Template != nil && slices.ContainsFunc(spec.Template.Spec.Volumes, func(v v1.Volume) bool { return v.WrittenClaim() == name })
	return !used
}
