// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/snapshot"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/snapshot/capture"
)

// restoreState labels the restored claim with the state of TPM and EFI as the VM's state claim, and marks the claim that it replaces for
// deletion. The VM is locked, so it cannot start while both claims or none have the label. If the snapshot has no such claim, the VM keeps
// its current one.
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
			metav1.SetMetaDataLabel(&changed.ObjectMeta, snapshot.RestoreCleanupStateLabel, capture.StateVolume(s.Restore.Spec.Target.Name))
		}
		s.step.Update, done = append(s.step.Update, changed), false
	}
	return s.updatingTarget(done)
}

// isForeign reports whether a claim belongs to an object other than the target, such as an earlier VM of its name. Users can set labels,
// and the VM does not start with such a claim.
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
