// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	"github.com/vireo-project/vireo/internal/instancetype/reference"
)

// checkPlan returns an error if the restore could not be completed. KubeVirt detects some of these errors only after it has deleted claims.
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
			return false, fmt.Errorf("ControllerRevision %s/%s of the snapshot contains no instance type and no preference", s.Restore.Namespace, names.From)
		}
		// KubeVirt replaces the revision regardless of its owner.
		if live := s.Revisions[names.To]; live != nil && !s.mayOwn(live) {
			return false, fmt.Errorf("ControllerRevision %s/%s exists already and belongs to another object", s.Restore.Namespace, names.To)
		}
	}
	if done, err := s.checkTarget(); err != nil || !done {
		return false, err
	}
	// This comes last: a class may be created again, and then it is better to know about what never changes.
	err := s.checkClasses()
	return err == nil, err
}

// checkClasses returns an error if the storage class of a claim that is to be created does not exist: nothing would provision it, and the
// claim that it replaces would be gone.
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

// checkTarget determines what the target will be. The API server checks it with each change until the first claim is restored. If a claim
// was deleted only before the last check, the snapshot still has its content.
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
	return live != nil && s.isOurs(live.Annotations)
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
	return fmt.Errorf("%s %s exists already: delete it, or give volume %s another name in volumeRestoreOverrides", kind, v.claim, v.VolumeName)
}

// mayOwn reports whether a revision belongs to the target, or was created by this restore for a target that did not exist. Any other
// revision without an owner belongs to a user, and is neither adopted nor replaced.
func (s *scope) mayOwn(revision metav1.Object) bool {
	if owner := metav1.GetControllerOf(revision); owner != nil {
		return s.Target != nil && owner.UID == s.Target.UID
	}
	return reference.IsRevision(revision.GetLabels())
}
