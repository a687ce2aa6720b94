// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package capture

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	"github.com/vireo-project/vireo/internal/component/printable"
	"github.com/vireo-project/vireo/internal/conditions"
)

// Reasons of the conditions of a snapshot.
const (
	reasonNoSource  = "Source does not exist"
	reasonNotLocked = "Source not locked"
	reasonLocked    = "Source locked and operation in progress"
	reasonNotReady  = "Not ready"
	reasonReady     = "Ready"
	reasonComplete  = "Operation complete"
	reasonFailed    = "Operation failed"
	reasonDeleting  = "VM snapshot is deleting"
	reasonError     = "In error state"
	reasonDeadline  = "snapshot deadline exceeded"
)

// Observed contains the observations from which the status of a snapshot is computed.
type Observed struct {
	// Now is the time.
	Now time.Time
	// Source is the VM.
	Source Source
	// Guest is the state of the guest when the snapshot was taken.
	Guest Guest
	// Content is nil before it is created and after it was deleted.
	Content *v1beta1.VirtualMachineSnapshotContent
}

// maxProblem is how many characters of a storage driver's or an agent's text a status contains.
const maxProblem = 4096

// Deadline returns when a snapshot fails, or zero if it never does.
func Deadline(vmSnapshot *v1beta1.VirtualMachineSnapshot) time.Time {
	limit := v1beta1.DefaultFailureDeadline
	if vmSnapshot.Spec.FailureDeadline != nil {
		limit = vmSnapshot.Spec.FailureDeadline.Duration
	}
	if limit == 0 || vmSnapshot.Status != nil && vmSnapshot.Status.Phase == v1beta1.Succeeded {
		return time.Time{}
	}
	return vmSnapshot.CreationTimestamp.Add(limit)
}

// Status returns the status of a snapshot.
func Status(vmSnapshot *v1beta1.VirtualMachineSnapshot, observed Observed) *v1beta1.VirtualMachineSnapshotStatus {
	status := vmSnapshot.Status.DeepCopy()
	if status == nil {
		status = &v1beta1.VirtualMachineSnapshotStatus{ReadyToUse: ptr.To(false)}
	}
	s := &statusWriter{status: status, now: metav1.NewTime(observed.Now)}
	if vm := observed.Source.VM; vm != nil && (status.SourceUID == nil || observed.Content == nil && !final(status)) {
		status.SourceUID = ptr.To(vm.UID)
	}
	if content := observed.Content; content != nil && content.Status != nil {
		status.VirtualMachineSnapshotContentName = ptr.To(content.Name)
		status.CreationTime = content.Status.CreationTime.DeepCopy()
		status.ReadyToUse = ptr.To(ptr.Deref(content.Status.ReadyToUse, false))
		status.Error = content.Status.Error.DeepCopy()
	}
	deadline := Deadline(vmSnapshot)
	switch {
	case status.Phase == v1beta1.Succeeded, status.Phase != v1beta1.Failed && status.CreationTime != nil:
		// A snapshot that was taken in time does not fail because that is observed late.
		s.succeed(observed)
	case status.Phase == v1beta1.Failed, !deadline.IsZero() && observed.Now.After(deadline):
		s.fail()
	case vmSnapshot.DeletionTimestamp != nil:
		status.Phase = v1beta1.Deleting
		s.set(v1beta1.ConditionProgressing, corev1.ConditionFalse, reasonDeleting)
	default:
		status.Phase = v1beta1.InProgress
		s.progress(vmSnapshot.Name, observed)
	}
	if ptr.Deref(status.ReadyToUse, false) {
		s.set(v1beta1.ConditionReady, corev1.ConditionTrue, reasonReady)
	} else {
		s.set(v1beta1.ConditionReady, corev1.ConditionFalse, reasonNotReady)
	}
	if status.Phase == v1beta1.Failed {
		s.set(v1beta1.ConditionFailure, corev1.ConditionTrue, reasonDeadline)
	}
	if status.Error != nil {
		s.set(v1beta1.ConditionProgressing, corev1.ConditionFalse, reasonError)
	}
	for i := range s.conditions {
		conditions.Set(&status.Conditions, s.conditions[i])
	}
	return status
}

func final(status *v1beta1.VirtualMachineSnapshotStatus) bool {
	return status.Phase == v1beta1.Succeeded || status.Phase == v1beta1.Failed
}

// statusWriter changes the status of a snapshot.
type statusWriter struct {
	status *v1beta1.VirtualMachineSnapshotStatus
	now    metav1.Time
	// conditions are the conditions to set. They are set at the end, because a transition time changes whenever the
	// condition's status does.
	conditions []v1beta1.Condition
}

// set adds a condition to those to set, or replaces it.
func (s *statusWriter) set(kind v1beta1.ConditionType, value corev1.ConditionStatus, reason string) {
	condition := v1beta1.Condition{Type: kind, Status: value, Reason: reason, LastProbeTime: s.now,
		LastTransitionTime: s.now}
	if i := slices.IndexFunc(s.conditions, func(c v1beta1.Condition) bool { return c.Type == kind }); i >= 0 {
		s.conditions[i] = condition
		return
	}
	s.conditions = append(s.conditions, condition)
}

func (s *statusWriter) progress(name string, seen Observed) {
	switch {
	case seen.Source.VM == nil:
		s.set(v1beta1.ConditionProgressing, corev1.ConditionFalse, reasonNoSource)
		return
	case seen.Source.Locked(name):
		s.set(v1beta1.ConditionProgressing, corev1.ConditionTrue, reasonLocked)
	default:
		reason := reasonNotLocked
		if obstacle := seen.Source.Obstacle(name); obstacle != "" {
			reason += " " + obstacle
		}
		s.set(v1beta1.ConditionProgressing, corev1.ConditionFalse, reason)
	}
	s.indicate(seen.Guest.indications())
}

func (s *statusWriter) succeed(seen Observed) {
	if s.status.Phase != v1beta1.Succeeded {
		s.status.Phase = v1beta1.Succeeded
		list := seen.Guest.indications()
		var partial bool
		if s.status.SnapshotVolumes, partial = lists(seen.Content); partial {
			list = append(list, indication(v1beta1.VMSnapshotPartialSnapshotIndication))
		}
		s.indicate(list)
	}
	s.set(v1beta1.ConditionProgressing, corev1.ConditionFalse, reasonComplete)
}

func (s *statusWriter) fail() {
	s.status.Phase = v1beta1.Failed
	s.set(v1beta1.ConditionProgressing, corev1.ConditionFalse, reasonFailed)
	// The content is deleted, so there is nothing that could be restored.
	s.status.ReadyToUse = ptr.To(false)
}

func (s *statusWriter) indicate(list []v1beta1.SourceIndication) {
	s.status.SourceIndications, s.status.Indications = list, nil
	for i := range list {
		s.status.Indications = append(s.status.Indications, list[i].Indication)
	}
}

// Taken is the state of the VolumeSnapshots of a content.
type Taken struct {
	// Now is the time.
	Now time.Time
	// Snapshots are the VolumeSnapshots by name.
	Snapshots map[string]*csi.VolumeSnapshot
	// Thawed reports whether the guest's file systems have been thawed, or were not frozen.
	Thawed bool
	// Abandoned reports whether the VirtualMachineSnapshot is deleted.
	Abandoned bool
	// Problem is why the missing VolumeSnapshots cannot be requested now.
	Problem string
}

// All reports whether the storage has taken all snapshots of a content, so that the guest may write again.
func (t Taken) All(content *v1beta1.VirtualMachineSnapshotContent) bool {
	for i := range content.Spec.VolumeBackups {
		taken := t.Snapshots[ptr.Deref(content.Spec.VolumeBackups[i].VolumeSnapshotName, "")]
		if taken == nil || taken.Status == nil || taken.Status.CreationTime == nil {
			return false
		}
	}
	return true
}

// ContentStatus returns the status of a content. Even after its creationTime is set, the status changes with the
// VolumeSnapshots.
func ContentStatus(
	content *v1beta1.VirtualMachineSnapshotContent, taken Taken,
) *v1beta1.VirtualMachineSnapshotContentStatus {
	status := content.Status.DeepCopy()
	if status == nil {
		status = &v1beta1.VirtualMachineSnapshotContentStatus{}
	}
	status.VolumeSnapshotStatus = nil
	var missing []string
	for i := range content.Spec.VolumeBackups {
		name := ptr.Deref(content.Spec.VolumeBackups[i].VolumeSnapshotName, "")
		if found := taken.Snapshots[name]; found != nil {
			status.VolumeSnapshotStatus = append(status.VolumeSnapshotStatus, volumeStatus(found))
		} else {
			missing = append(missing, name)
		}
	}
	ready, latest, problem := summary(status.VolumeSnapshotStatus)
	if text := missingProblem(missing, status.CreationTime != nil, taken); text != "" {
		problem = text
	}
	if status.CreationTime == nil && taken.Thawed && taken.All(content) {
		if latest.IsZero() {
			latest = metav1.NewTime(taken.Now) // Only the VM itself was stored.
		}
		status.CreationTime = &latest
	}
	status.ReadyToUse = ptr.To(ready && len(missing) == 0 && status.CreationTime != nil)
	setProblem(status, problem, taken.Now)
	return status
}

// summary reports whether all VolumeSnapshots can be restored, when the latest was taken, and the first error.
func summary(all []v1beta1.VolumeSnapshotStatus) (ready bool, latest metav1.Time, problem string) {
	ready = true
	for i := range all {
		status := &all[i]
		usable := ptr.Deref(status.ReadyToUse, false)
		ready = ready && usable
		// An error stays in the VolumeSnapshot when a later attempt has succeeded.
		if !usable && problem == "" && status.Error != nil && status.Error.Message != nil {
			problem = fmt.Sprintf("VolumeSnapshot %s error: %s", status.VolumeSnapshotName, *status.Error.Message)
		}
		if taken := status.CreationTime; taken != nil && latest.Before(taken) {
			latest = *taken
		}
	}
	return ready, latest, problem
}

// missingProblem returns the error about missing VolumeSnapshots, or "". created reports whether all of them had been
// taken.
func missingProblem(missing []string, created bool, taken Taken) string {
	slices.Sort(missing)
	names := strings.Join(missing, ",")
	switch {
	case names == "":
		return ""
	case created:
		return fmt.Sprintf("VolumeSnapshots (%s) missing", names)
	case taken.Abandoned:
		return fmt.Sprintf("VolumeSnapshots (%s) skipped because vm snapshot is deleted", names)
	default:
		return taken.Problem
	}
}

func volumeStatus(found *csi.VolumeSnapshot) v1beta1.VolumeSnapshotStatus {
	out := v1beta1.VolumeSnapshotStatus{VolumeSnapshotName: found.Name}
	if found.Status == nil {
		return out
	}
	out.CreationTime, out.ReadyToUse = found.Status.CreationTime, found.Status.ReadyToUse
	if found.Status.Error != nil {
		out.Error = &v1beta1.Error{Time: found.Status.Error.Time}
		if text := found.Status.Error.Message; text != nil {
			out.Error.Message = ptr.To(printable.Text(*text, maxProblem))
		}
	}
	return out
}

// setProblem sets the error of a content, with the time at which it first occurred.
func setProblem(status *v1beta1.VirtualMachineSnapshotContentStatus, problem string, now time.Time) {
	problem = printable.Text(problem, maxProblem)
	switch {
	case problem == "":
		status.Error = nil
	case status.Error == nil || ptr.Deref(status.Error.Message, "") != problem:
		status.Error = &v1beta1.Error{Time: ptr.To(metav1.NewTime(now)), Message: &problem}
	}
}
