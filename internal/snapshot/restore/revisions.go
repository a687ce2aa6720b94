// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/instancetype/reference"
	"github.com/vireo-project/vireo/internal/snapshot/capture"
)

// Revisions returns the ControllerRevisions of a content with its VM's instance type and preference. From is the name of the snapshot's
// revision, and To that of the restored VM's.
func Revisions(vmRestore *v1beta1.VirtualMachineRestore, content *v1beta1.VirtualMachineSnapshotContent) []capture.RevisionCopy {
	if content == nil || content.Spec.Source.VirtualMachine == nil {
		return nil
	}
	var out []capture.RevisionCopy
	for _, class := range reference.Classes {
		if matcher := class.MatcherOf(&content.Spec.Source.VirtualMachine.Spec); matcher != nil && matcher.RevisionName != "" {
			out = append(out, capture.RevisionCopy{From: matcher.RevisionName, To: restoredRevision(vmRestore, matcher.RevisionName)})
		}
	}
	return out
}

func restoredRevision(vmRestore *v1beta1.VirtualMachineRestore, name string) string {
	return capture.Rename(name, vmRestore.Spec.VirtualMachineSnapshotName, vmRestore.Spec.Target.Name)
}

// restoreRevisions creates the restored VM's revisions. Their data is immutable, so an existing revision with other data is deleted first.
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
