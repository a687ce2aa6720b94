// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package backup

import "time"

// JobState is what libvirt reports about a guest's jobs.
type JobState uint8

// What libvirt reports.
const (
	// JobNone: there is no job, and no result of one.
	JobNone JobState = iota
	// JobActive: a backup is running.
	JobActive
	// JobOther: another job is running, such as a migration. Results are not known until it has ended.
	JobOther
	// JobSucceeded: there is no job, and the last one was a backup that has copied everything, or a pull, however that
	// ended.
	JobSucceeded
	// JobFailed: there is no job, and the last one was a backup that failed or was aborted.
	JobFailed
)

// Job is the backup job of a guest. libvirt keeps the result of a job until it is discarded, or until another one ends.
type Job struct {
	// State is its state.
	State JobState
	// Problem explains to users why it failed.
	Problem string
	// Socket is where the active job serves the disks. It is empty for a job that copies them.
	Socket string
}

// View is what the agent observes.
type View struct {
	// Now is the time by the node's clock.
	Now time.Time
	// Intent is the intent in the VMI's status, or nil. It may be stale.
	Intent *Intent
	// Record is the record in the domain's metadata, which is never stale.
	Record Record
	// Job is libvirt's job.
	Job Job
	// Images reports whether all images of the record's backup exist, in the directory that only this backup has. libvirt
	// removes them if the job fails, and does not report of which backup a result is. It only matters with JobSucceeded.
	Images bool
	// Foreign is set if the active job is certainly not the record's: the request of an earlier process has reached
	// libvirt late.
	Foreign bool
	// NoRoom is why the guest's writes would soon fail if a running pull went on: its scratch files cannot grow enough.
	NoRoom string
	// Blocked is set while no backup may begin: the guest migrates, or the utility volume is not there.
	Blocked bool
	// Changes is what is known about changed blocks. It only matters before the record is written.
	Changes Changes
	// Problem is why libvirt has refused to begin the backup, in this run.
	Problem string
	// Only is set if that was the only request for this record that can ever have reached libvirt. Otherwise an earlier
	// one may still begin an incremental backup.
	Only bool
}

// Action is an action of the agent. Each is idempotent: after an action, and after a restart, the agent decides again.
type Action uint8

// The actions of the agent.
const (
	// Wait does nothing until the intent, the job or the time changes.
	Wait Action = iota
	// Request discards the result of the last job, and then writes the record.
	Request
	// Begin begins the backup. The next view has the problem if libvirt refuses that.
	Begin
	// Write writes the record.
	Write
	// Abort aborts the backup.
	Abort
)

// Problems of a record for which libvirt has no text.
const (
	problemCanceled = "the backup was canceled before it had started"
	problemLost     = "the job has ended, and libvirt does not report how"
	problemMissing  = "libvirt reports that a backup has succeeded, but not all images of this one are there"
	problemFailed   = "libvirt reports that the job has failed, without a reason"
	problemStopped  = "QEMU has stopped serving the disks, although the backup was not canceled"
)

// Decide returns the agent's next action, and the record for Request and Write.
func Decide(v View) (Action, Record) {
	if v.Record.Ended() {
		return v.idle()
	}
	if v.Record.Canceled && (v.Job.State == JobNone || v.Job.State == JobFailed) {
		// The disks of the pull were served until now, whatever is known about the job that has ended.
		return v.end(Succeeded, "")
	}
	switch v.Job.State {
	case JobOther:
		return Wait, v.Record
	case JobSucceeded:
		return v.succeeded()
	case JobFailed:
		if v.Job.Problem == "" {
			v.Job.Problem = problemFailed
		}
		return v.end(Failed, v.Job.Problem)
	case JobActive:
		return v.active()
	default:
		return v.inactive()
	}
}

// idle starts a backup, or records that a canceled one was never started. The record is written first, so that a job
// always has one.
func (v View) idle() (Action, Record) {
	i := v.Intent
	switch {
	case v.Job.State == JobActive:
		// A request of an earlier process has reached libvirt after the record had ended, or only the launcher knows the job.
		return Abort, v.Record
	case i == nil || i.ID == v.Record.ID:
		return Wait, v.Record
	case i.Canceled:
		return Write, Record{ID: i.ID, Stage: Failed, StartedAt: v.Now, EndedAt: v.Now, Problem: problemCanceled,
			Pull: i.Pull}
	case v.Blocked || v.Job.State == JobOther:
		return Wait, v.Record
	default:
		return Request, i.record(v.Now, v.Changes)
	}
}

// wanted reports whether the record's backup is to go on. One whose intent is gone is not: its target is about to be
// detached.
func (v View) wanted() bool {
	return v.Intent != nil && v.Intent.ID == v.Record.ID && !v.Intent.Canceled
}

// succeeded ends a backup of which libvirt reports success.
func (v View) succeeded() (Action, Record) {
	switch {
	case v.Record.Pull:
		// libvirt reports the same of a pull that was aborted, for whatever reason, and of one that no client has read.
		if v.Record.Canceled {
			return v.end(Succeeded, "")
		}
		if v.Record.Stage == Requested && !v.wanted() {
			return v.end(Failed, problemCanceled)
		}
		return v.end(Failed, problemStopped)
	case !v.Images:
		return v.end(Failed, problemMissing)
	default:
		return v.end(Succeeded, "")
	}
}

func (v View) active() (Action, Record) {
	next := v.Record
	running := v.Record.Stage == Running
	switch {
	case v.Foreign || v.Record.Canceled || v.Record.Problem != "":
		return Abort, v.Record
	case running && v.Record.Pull && v.canceled():
		// Written before the job is aborted: afterwards it would not be known that the disks were served until now.
		next.Canceled = true
		return Write, next
	case !v.wanted():
		return Abort, v.Record
	case running && v.Record.Pull && v.NoRoom != "":
		next.Problem = v.NoRoom
		return Write, next
	case !running:
		next.Stage = Running
		return Write, next
	default:
		return Wait, v.Record
	}
}

// canceled reports whether virt-controller has canceled the record's backup.
func (v View) canceled() bool {
	return v.Intent != nil && v.Intent.ID == v.Record.ID && v.Intent.Canceled
}

// inactive decides while there is neither a job nor a result.
func (v View) inactive() (Action, Record) {
	switch {
	case v.Record.Stage == Running:
		return v.end(Failed, problemLost)
	case !v.wanted():
		return v.end(Failed, problemCanceled)
	case v.Problem != "" && v.Record.Incremental() && v.Only:
		return Write, v.Record.full("libvirt refused an incremental one: " + v.Problem)
	case v.Problem != "":
		return v.end(Failed, v.Problem)
	case v.Blocked:
		return Wait, v.Record
	default:
		return Begin, v.Record
	}
}

func (v View) end(stage Stage, problem string) (Action, Record) {
	next := v.Record
	if next.Problem != "" && stage == Failed {
		problem = next.Problem // for which the job was aborted
	}
	next.Stage, next.EndedAt, next.Problem = stage, v.Now, problem
	return Write, next
}
