// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clone

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/clone"
	"github.com/vireo-project/vireo/api/clone/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	"github.com/vireo-project/vireo/internal/component/printable"
	"github.com/vireo-project/vireo/internal/conditions"
)

// Reasons of the conditions of a clone.
const (
	reasonPending    = "Pending"
	reasonProcessing = "Still processing"
	reasonReady      = "Ready"
	reasonFailed     = "Failed"
)

// maxText is the maximum length of a text in the status, in characters. It may contain texts of the user, such as a
// patch.
const maxText = 4096

// set sets the two conditions.
func (s *scope) set(
	progressing corev1.ConditionStatus, progress string, ready corev1.ConditionStatus, reason, message string,
) {
	now := metav1.NewTime(s.Now)
	conditions.Set(&s.status.Conditions, v1beta1.Condition{
		Type: v1beta1.ConditionProgressing, Status: progressing, Reason: progress, LastTransitionTime: now,
	})
	conditions.Set(&s.status.Conditions, v1beta1.Condition{
		Type: v1beta1.ConditionReady, Status: ready, Reason: reason, Message: message, LastTransitionTime: now,
	})
}

// working reports that the clone is in progress. The message, which KubeVirt does not have, is what the snapshot or the
// restore waits for.
func (s *scope) working(message string) {
	s.set(corev1.ConditionTrue, reasonProcessing, corev1.ConditionFalse, reasonProcessing,
		printable.Text(message, maxText))
}

func (s *scope) advance(phase v1beta1.VirtualMachineClonePhase) {
	s.status.Phase = phase
	s.working("")
}

// pending reports what the user has to change first. The clone continues as soon as that has changed.
func (s *scope) pending(event, text string) {
	text = printable.Lines(text, maxText)
	s.set(corev1.ConditionFalse, reasonPending, corev1.ConditionFalse, text, "")
	if event != "" {
		s.record(event, text)
	}
}

func (s *scope) succeeded() {
	s.set(corev1.ConditionFalse, reasonReady, corev1.ConditionTrue, reasonReady, "")
}

// fail ends the clone. The objects that it has created are deleted with it. Not every failure has details.
func (s *scope) fail(event, text, details string) {
	if details != "" {
		text += ": " + details
	}
	text = printable.Lines(text, maxText)
	s.status.Phase = v1beta1.Failed
	s.set(corev1.ConditionFalse, reasonFailed, corev1.ConditionFalse, text, "")
	s.record(event, text)
}

// record adds an event. As in KubeVirt, those of a clone are of type Normal, also for failures, except for a restore
// that was not created.
func (s *scope) record(reason, note string) {
	kind := corev1.EventTypeNormal
	if reason == clone.RestoreCreationFailedEvent {
		kind = corev1.EventTypeWarning
	}
	s.step.Events = append(s.step.Events, Event{Type: kind, Reason: reason, Note: note})
}

// report reports an error after which the clone is retried.
func (s *scope) report(err error) {
	s.working(err.Error())
	s.step.RequeueAfter = retry
}

// refuse reports that the restore cannot be created.
func (s *scope) refuse(err error) {
	s.report(err)
	s.record(clone.RestoreCreationFailedEvent, printable.Text(err.Error(), maxText))
}

// Failed returns the step that reports that the changes of a step could not be applied.
func Failed(o Observed, step Step, err error) Step {
	s := newScope(o)
	for _, object := range step.Create {
		switch object.(type) {
		case *snapshotv1beta1.VirtualMachineSnapshot:
			s.report(fmt.Errorf("failed creating snapshot %s for clone %s: %w", object.GetName(), o.Clone.Name, err))
		case *snapshotv1beta1.VirtualMachineRestore:
			s.refuse(fmt.Errorf("failed creating restore %s for clone %s: %w", object.GetName(), o.Clone.Name, err))
		}
	}
	if len(step.Create) == 0 {
		s.reportCleanup(err)
	}
	return *s.step
}

// reportCleanup reports an error of deleting the temporary objects. The target exists already, so the clone keeps its
// state.
func (s *scope) reportCleanup(err error) {
	if ready := conditions.Find(s.status.Conditions, v1beta1.ConditionReady); ready != nil {
		changed := *ready
		changed.Message = printable.Text(err.Error(), maxText)
		conditions.Set(&s.status.Conditions, changed)
	}
	s.step.RequeueAfter = retry
}

// snapshotProblem and restoreProblem return why a snapshot or a restore does not make progress, or "".
func snapshotProblem(vmSnapshot *snapshotv1beta1.VirtualMachineSnapshot) string {
	if vmSnapshot.Status == nil || vmSnapshot.Status.Error == nil || vmSnapshot.Status.Error.Message == nil {
		return ""
	}
	return fmt.Sprintf("snapshot %s: %s", vmSnapshot.Name, *vmSnapshot.Status.Error.Message)
}

func restoreProblem(vmRestore *snapshotv1beta1.VirtualMachineRestore) string {
	if vmRestore.Status == nil {
		return ""
	}
	progressing := conditions.Find(vmRestore.Status.Conditions, snapshotv1beta1.ConditionProgressing)
	if progressing == nil || progressing.Status != corev1.ConditionFalse {
		return ""
	}
	return fmt.Sprintf("restore %s: %s", vmRestore.Name, progressing.Reason)
}
