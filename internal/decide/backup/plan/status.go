// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

// problemNotKept is why the guest was not frozen, if the agent does not report it.
const problemNotKept = "The guest's file systems were not frozen until the backup had begun"

// messageFull and messageIncremental say what a backup that is complete has.
const (
	messageFull        = "The backup has all data of the included volumes"
	messageIncremental = "The backup has what has changed in the included volumes since the checkpoint "
)

// endedByMigration is why a backup was canceled.
const endedByMigration = "A migration of the guest with the priority system-critical does not wait for the backup, and has ended it"

// How messages begin: with the sentences of KubeVirt 1.9, which clients look for. Vireo's own text follows.
const (
	beginsComplete = "Successfully completed VirtualMachineBackup. "
	beginsWarning  = "Completed VirtualMachineBackup, warning: "
	beginsFailed   = "Backup has failed: "
)

// begins are the same sentences for the reasons of Progressing and Quiesced.
var begins = map[string]string{
	v1alpha1.ReasonInitiated:        "Backup is in progress. ",
	v1alpha1.ReasonPreparingExport:  "Backup export is being initialized. ",
	v1alpha1.ReasonExportReady:      "Backup export is ready to pull. ",
	v1alpha1.ReasonAborting:         "Backup is aborting. ",
	v1alpha1.ReasonQuiesceSucceeded: "Guest filesystem was successfully quiesced. ",
	v1alpha1.ReasonQuiesceFailed:    "Guest filesystem quiesce failed. ",
	v1alpha1.ReasonQuiesceSkipped:   "Guest filesystem quiesce was skipped. ",
}

// set sets a condition.
func (p *planner) set(kind v1alpha1.ConditionType, isTrue bool, reason, message string) {
	status := metav1.ConditionFalse
	if isTrue {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&p.step.Status.Conditions, metav1.Condition{
		Type: string(kind), Status: status, Reason: reason, Message: message,
		ObservedGeneration: p.Backup.Generation, LastTransitionTime: metav1.NewTime(p.Now),
	})
}

// progress reports what the backup waits for.
func (p *planner) progress(reason, message string) {
	p.set(v1alpha1.ConditionProgressing, true, reason, begins[reason]+message)
}

// fail reports that there will be no backup.
func (p *planner) fail(reason, message string) {
	p.step.Status.CheckpointName = nil
	p.set(v1alpha1.ConditionProgressing, false, reason, beginsFailed+message)
	p.set(v1alpha1.ConditionFailed, true, reason, beginsFailed+message)
}

// complete reports that there is a backup, with a warning if the guest was to be frozen and was not, or if the next
// backup does not start from this one because not all of it was read.
func (p *planner) complete() {
	message := messageFull
	switch {
	case p.record.Incremental():
		message = messageIncremental + p.record.Since
	case p.Tracker != nil:
		message += ". It is a full one because " + p.whyFull()
	}
	warnings := ""
	// Without a checkpoint, no later backup can lack what was not read: the client that reads it knows whether it has got
	// it.
	switch unread := p.unread(); {
	case unread == "":
	case p.preempted():
		warnings = endedByMigration + ". " + unread + ". "
	case p.created() != "":
		warnings = unread + ". "
	default:
		message += ". " + unread
	}
	if quiesced := p.condition(v1alpha1.ConditionQuiesced); quiesced != nil &&
		quiesced.Reason == v1alpha1.ReasonQuiesceFailed {
		warnings += quiesced.Message + ". "
	}
	reason, begin := v1alpha1.ReasonCompleted, beginsComplete
	if warnings != "" {
		reason, begin = v1alpha1.ReasonCompletedWithWarning, beginsWarning+warnings
	}
	if p.record.Checkpoint != "" && p.latest() != p.created() {
		// The next backup deletes the checkpoint.
		p.step.Status.CheckpointName = nil
		if p.Tracker == nil || p.unread() == "" {
			// The tracker is gone or was replaced.
			message += ". No tracker has its checkpoint: the next backup does not start from it"
		}
	}
	message = begin + message
	p.set(v1alpha1.ConditionProgressing, false, reason, message)
	p.set(v1alpha1.ConditionComplete, true, reason, message)
}

func (p *planner) condition(kind v1alpha1.ConditionType) *metav1.Condition {
	return meta.FindStatusCondition(p.step.Status.Conditions, string(kind))
}

// ended reports whether the backup is complete or has failed.
func (p *planner) ended() bool {
	return Ended(p.Backup)
}

// initiated reports whether the status has recorded that the backup was requested.
func (p *planner) initiated() bool {
	progressing := p.condition(v1alpha1.ConditionProgressing)
	if progressing == nil {
		return false
	}
	switch progressing.Reason {
	case v1alpha1.ReasonInitiated, v1alpha1.ReasonPreparingExport, v1alpha1.ReasonExportReady, v1alpha1.ReasonAborting:
		return true
	default:
		return false
	}
}

// setQuiesced reports how the freeze has ended. It does not change afterwards: a later freeze replaces that of the
// backup in the VMI.
func (p *planner) setQuiesced(view freeze.ControllerView) {
	switch {
	case p.condition(v1alpha1.ConditionQuiesced) != nil:
	case view.Consistent():
		p.quiesced(true, v1alpha1.ReasonQuiesceSucceeded, "The guest's file systems were frozen when the backup began")
	case view.Record.ID == p.id && view.Record.Problem != "":
		p.quiesced(false, v1alpha1.ReasonQuiesceFailed, view.Record.Problem)
	default:
		p.quiesced(false, v1alpha1.ReasonQuiesceFailed, problemNotKept)
	}
}

// setUnfrozen reports why no freeze was requested.
func (p *planner) setUnfrozen() {
	if p.condition(v1alpha1.ConditionQuiesced) != nil {
		return
	}
	if wanted, why := p.wantsFreeze(); !wanted {
		p.quiesced(false, v1alpha1.ReasonQuiesceSkipped, why)
		return
	}
	p.quiesced(false, v1alpha1.ReasonQuiesceFailed, problemNotKept)
}

func (p *planner) quiesced(isTrue bool, reason, message string) {
	p.set(v1alpha1.ConditionQuiesced, isTrue, reason, begins[reason]+message)
}

// defaultTTL is how long a backup can be pulled if it does not say that. KubeVirt's.
const defaultTTL = 2 * time.Hour

// IsPull reports whether a backup is pulled.
func IsPull(b *v1alpha1.VirtualMachineBackup) bool {
	return ptr.Deref(b.Spec.Mode, v1alpha1.PushMode) == v1alpha1.PullMode
}

// Expiry returns until when a backup can be pulled.
func Expiry(b *v1alpha1.VirtualMachineBackup) time.Time {
	if b.Spec.TTLDuration != nil {
		return b.CreationTimestamp.Add(b.Spec.TTLDuration.Duration)
	}
	return b.CreationTimestamp.Add(defaultTTL)
}

// Ended reports whether a backup is complete or has failed.
func Ended(b *v1alpha1.VirtualMachineBackup) bool {
	return b.Status != nil && (meta.IsStatusConditionTrue(b.Status.Conditions, string(v1alpha1.ConditionComplete)) ||
		meta.IsStatusConditionTrue(b.Status.Conditions, string(v1alpha1.ConditionFailed)))
}

// PullEnds reports whether a backup is not to be pulled any more, and since when. It ends with its deletion or its
// time.
func PullEnds(b *v1alpha1.VirtualMachineBackup, now time.Time) (since time.Time, ends bool) {
	expiry := Expiry(b)
	if b.DeletionTimestamp != nil && b.DeletionTimestamp.Time.Before(expiry) {
		return b.DeletionTimestamp.Time, true
	}
	return expiry, !now.Before(expiry)
}
