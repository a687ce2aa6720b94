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

// Revisions returns the ControllerRevisions of a content with its VM's instance type and preference: From is the snapshot's, To
// the one of the restored VM.
func Revisions(of *v1beta1.VirtualMachineRestore, content *v1beta1.VirtualMachineSnapshotContent) []capture.RevisionCopy {
	if content == nil || content.Spec.Source.VirtualMachine == nil {
		return nil
	}
	var out []capture.RevisionCopy
	for _, class := range reference.Classes {
		if matcher := class.MatcherOf(&content.Spec.Source.VirtualMachine.Spec); matcher != nil && matcher.RevisionName != "" {
			out = append(out, capture.RevisionCopy{From: matcher.RevisionName, To: restoredRevision(of, matcher.RevisionName)})
		}
	}
	return out
}

func restoredRevision(of *v1beta1.VirtualMachineRestore, name string) string {
	return capture.Rename(name, of.Spec.VirtualMachineSnapshotName, of.Spec.Target.Name)
}

// restoreRevisions creates the restored VM's revisions. Their data cannot be changed: one that differs is deleted before.
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
