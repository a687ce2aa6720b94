// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	"github.com/vireo-project/vireo/internal/component/printable"
	"github.com/vireo-project/vireo/internal/conditions"
)

// Reasons of the conditions of a restore.
const (
	reasonInitializing   = "Initializing VirtualMachineRestore"
	reasonCreatingClaims = "Creating new PVCs"
	reasonAwaitingClaims = "Waiting for new PVCs"
	reasonUpdatingTarget = "Updating target spec"
	reasonAwaitingTarget = "Waiting for target update"
	reasonComplete       = "Operation complete"
	reasonDeleting       = "VM restore is deleting"
	reasonWaiting        = "Waiting for target VM to be powered off. Please stop the restore target to proceed with restore"
	reasonStopping       = "Automatically stopping restore target for restore operation"
	reasonRunning        = "Restore target VMI must be powered off before restore operation"
)

var (
	reasonWaitingInTime = fmt.Sprintf("%s, or the operation will fail after %s", reasonWaiting, v1beta1.DefaultGracePeriod)
	reasonGraceExceeded = fmt.Sprintf(
		"Restore target failed to be ready within %s. Please power off the target VM before attempting restore",
		v1beta1.DefaultGracePeriod)
)

// maxReason is the maximum length of a reason in characters. Errors may contain texts of the user, such as a patch.
const maxReason = 4096

// noteRunning is the note of the event about a target that runs.
const noteRunning = "Restore target VMI still exists, please stop the restore target to proceed with restore"

func (s *scope) set(kind v1beta1.ConditionType, value corev1.ConditionStatus, reason string) {
	now := metav1.NewTime(s.Now)
	conditions.Set(&s.step.Status.Conditions, v1beta1.Condition{
		Type: kind, Status: value, Reason: reason, LastProbeTime: now, LastTransitionTime: now,
	})
}

// progress reports that the restore is not complete.
func (s *scope) progress(value corev1.ConditionStatus, progressing, ready string) {
	s.set(v1beta1.ConditionProgressing, value, progressing)
	s.set(v1beta1.ConditionReady, corev1.ConditionFalse, ready)
}

// creatingClaims ends a stage that creates claims, and updatingTarget a stage that updates the target. Unless the stage
// is done, they report what the restore waits for.
func (s *scope) creatingClaims(done bool) (bool, error) {
	if !done {
		s.progress(corev1.ConditionTrue, reasonCreatingClaims, reasonAwaitingClaims)
	}
	return done, nil
}

func (s *scope) updatingTarget(done bool) (bool, error) {
	if !done {
		s.progress(corev1.ConditionTrue, reasonUpdatingTarget, reasonAwaitingTarget)
	}
	return done, nil
}

func (s *scope) warn(reason, note string) {
	s.step.Event = &Event{Type: corev1.EventTypeWarning, Reason: reason, Note: note}
}

// report reports an error. The restore continues once its cause is removed.
func (s *scope) report(err error) {
	text := printable.Text(err.Error(), maxReason)
	s.progress(corev1.ConditionFalse, text, text)
	s.warn(snapshot.RestoreErrorEvent, "VirtualMachineRestore encountered error "+text)
	s.step.Check, s.step.Create, s.step.Update, s.step.Delete = nil, nil, nil, nil
	s.step.RequeueAfter = retry
	before := conditions.Find(s.reported(), v1beta1.ConditionProgressing)
	if before != nil && before.Status == corev1.ConditionFalse {
		s.step.RequeueAfter = min(max(s.Now.Sub(before.LastTransitionTime.Time), retry), maxRetry)
	}
}

// reported returns the conditions of the restore as they were read.
func (s *scope) reported() []v1beta1.Condition {
	if s.Restore.Status == nil {
		return nil
	}
	return s.Restore.Status.Conditions
}

// fail ends the restore. Nothing would unlock the target later.
func (s *scope) fail(reason string) {
	s.step.Unlock = s.holdsLock()
	s.progress(corev1.ConditionFalse, reason, reason)
	s.set(v1beta1.ConditionFailure, corev1.ConditionTrue, reason)
	s.warn(snapshot.RestoreFailedEvent, "VirtualMachineRestore failed "+reason)
}

// awaitTarget waits until an existing target has no VMI. A target that has just started when it was locked is unlocked
// again, because users cannot stop a locked VM by its run strategy.
func awaitTarget(s *scope) (bool, error) {
	if s.Target == nil || !s.Running {
		return true, nil
	}
	s.step.Unlock = s.holdsLock()
	switch policy := ptr.Deref(s.Restore.Spec.TargetReadinessPolicy,
		v1beta1.VirtualMachineRestoreWaitGracePeriodAndFail); policy {
	case v1beta1.VirtualMachineRestoreStopTarget:
		s.step.Stop = !s.step.Unlock // Both write the target.
		s.progress(corev1.ConditionFalse, reasonStopping, reasonStopping)
		s.warn(snapshot.RestoreTargetNotReadyEvent, reasonStopping)
	case v1beta1.VirtualMachineRestoreFailImmediate:
		s.fail(reasonRunning)
	case v1beta1.VirtualMachineRestoreWaitEventually:
		s.progress(corev1.ConditionFalse, reasonWaiting, reasonWaiting)
		s.warn(snapshot.RestoreTargetNotReadyEvent, noteRunning)
	case v1beta1.VirtualMachineRestoreWaitGracePeriodAndFail:
		remaining := s.Restore.CreationTimestamp.Add(v1beta1.DefaultGracePeriod).Sub(s.Now)
		if remaining <= 0 {
			s.fail(reasonGraceExceeded)
			break
		}
		s.progress(corev1.ConditionFalse, reasonWaitingInTime, reasonWaitingInTime)
		s.warn(snapshot.RestoreTargetNotReadyEvent, noteRunning)
		s.step.RequeueAfter = remaining // KubeVirt fails only when the next event occurs.
	default:
		return false, fmt.Errorf("unknown targetReadinessPolicy: %s", policy)
	}
	return false, nil
}

// complete ends the restore.
func complete(s *scope) (bool, error) {
	s.step.Status.Complete, s.step.Status.RestoreTime = ptr.To(true), ptr.To(metav1.NewTime(s.Now))
	s.set(v1beta1.ConditionProgressing, corev1.ConditionFalse, reasonComplete)
	s.set(v1beta1.ConditionReady, corev1.ConditionTrue, reasonComplete)
	s.step.Event = &Event{
		Type: corev1.EventTypeNormal, Reason: snapshot.RestoreCompleteEvent,
		Note: "Successfully completed VirtualMachineRestore " + s.Restore.Name,
	}
	return true, nil
}
