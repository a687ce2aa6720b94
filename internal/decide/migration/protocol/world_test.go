// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package protocol

import "slices"

// job is the state of the migration job in the source's libvirtd.
type job uint8

const (
	noJob job = iota
	copying
	// copied: the stream is complete and the source's guest is suspended.
	copied
	// finished: the target's libvirtd has completed its guest.
	finished
)

// call is the libvirt call of the source's agent that runs the job.
type call uint8

const (
	noCall call = iota
	attached
	// lingering: the agent's process has ended, and libvirtd has not detected it yet. The last request may still be
	// executed.
	lingering
)

// world is a state of the model: the actual state, and the last observations of source, target and controller.
type world struct {
	record, seenBySource, seenByTarget, seenByController Record

	source SourceDomain
	target TargetDomain
	// stale reports whether the source's guest has continued, so that the target's copy is outdated.
	stale bool
	job   job
	call  call
	// dead reports whether the source's QEMU has exited before libvirt has detected it, and deadSeen whether the process
	// of the source's agent that runs the job has detected it.
	dead, deadSeen bool
	// lateFinish reports whether a request to complete the target's guest is still in flight after its caller has given
	// up.
	lateFinish bool

	// message reports whether a release is in flight, and released whether the process of the target's agent has received
	// it.
	message, released bool

	sourcePod, targetPod           PodFate
	sourcePodSeen, targetPodSeen   PodFate
	deleteSource, deleteTarget     bool
	sourceNodeDead, targetNodeDead bool
	// lost reports whether a fatal fault occurred: the loss of a guest, a node, or a launcher's termination message.
	lost bool
}

// rules are the decisions under test.
type rules struct {
	source     func(SourceView) []Action
	target     func(TargetView) []Action
	controller func(ControllerView) []Action
	// locks: QEMU locks the images, so that no guest can resume while another QEMU uses them. Not all storage supports it.
	locks bool
	// postCopy: the source's agent may switch to post-copy; unrecorded: even before it has recorded that.
	postCopy, unrecorded bool
	// hasty: the source's agent takes the completion of the target's guest for the exit of its own QEMU.
	hasty bool
	// unread: the controller deletes the target's Pod without reading the record again.
	unread bool
	// resumesItself: libvirt starts the target's guest as soon as it is complete, as it does by default.
	resumesItself bool
}

// step is a transition to another state.
type step struct {
	name  string
	fault bool
	after world
}

// steps returns all transitions from a state.
func (r rules) steps(w world) []step {
	var out []step
	out = append(out, r.sourceActs(w)...)
	out = append(out, r.targetActs(w)...)
	out = append(out, r.controllerActs(w)...)
	out = append(out, observations(w)...)
	out = append(out, r.libvirtWorks(w)...)
	out = append(out, kubeletsWork(w)...)
	out = append(out, recoverableFaults(w)...)
	out = append(out, fatalFaults(w)...)
	return out
}

// swap is a compare-and-swap of the record.
func swap(w world, seen Record, change func(*Record)) (world, bool) {
	if seen != w.record {
		return w, false
	}
	change(&w.record)
	return w, true
}

func (r rules) sourceActs(w world) []step {
	if w.sourceNodeDead {
		return nil
	}
	view := func(record Record) SourceView {
		return SourceView{
			Record: record, Domain: w.source, Transferring: w.call == attached, Orphaned: w.job != noJob && w.call != attached,
			QEMUExited:     w.deadSeen || (r.hasty && w.call == attached && w.job == finished && w.source == SourceSuspended),
			TargetPrepared: w.targetPod == PodAlive && !w.targetNodeDead && !w.deleteTarget && w.target == TargetAbsent,
		}
	}
	var out []step
	for _, a := range r.source(view(w.seenBySource)) {
		if a == Resume && r.locks && (w.target == TargetComplete || w.target == TargetRunning) {
			continue
		}
		if n, ok := sourceDoes(w, a, func() bool { return slices.Contains(r.source(view(w.record)), a) }); ok && n != w {
			out = append(out, step{"source: " + names[a], false, n})
		}
		if a == Start {
			n, _ := swap(w, w.seenBySource, func(r *Record) { r.Started = true })
			out = append(out, step{"source: Start, then crash", true, n})
		}
	}
	return out
}

// sourceDoes returns the state after an action of the source's agent, and false if the action fails. Still reports
// whether the action would be decided with the current record.
func sourceDoes(w world, a Action, still func() bool) (world, bool) {
	switch a {
	case Start:
		n, ok := swap(w, w.seenBySource, func(r *Record) { r.Started = true })
		n.call, n.job, n.target, n.stale = attached, copying, TargetReceiving, false
		return n, ok
	case Cancel:
		n := w
		n.job, n.call, n.target = noJob, noCall, TargetAbsent
		return n, w.job == copying && w.source != SourcePostCopy
	case Resume:
		if w.dead {
			return w, false
		}
		n := w
		n.source, n.stale = SourceRunning, w.stale || w.target != TargetAbsent
		return n, still()
	case RecordFailure:
		return swap(w, w.seenBySource, func(r *Record) { r.Failed = true })
	case TransferOwnership:
		return swap(w, w.seenBySource, func(r *Record) { r.Owner = Target })
	case Release:
		w.message = true
	case Destroy:
		if w.source == SourcePostCopy {
			// The target's guest still needed its memory.
			w.target = TargetAbsent
		}
		w.source, w.dead = SourceEnded, false
	}
	return w, true // Transfer is part of Start
}

func (r rules) targetActs(w world) []step {
	if w.targetNodeDead {
		return nil
	}
	var out []step
	for _, a := range r.target(TargetView{Record: w.seenByTarget, Domain: w.target, Released: w.released}) {
		n, ok := w, true
		switch a {
		case Run:
			n.target = TargetRunning
		case TakeOwnership:
			n, ok = swap(n, w.seenByTarget, func(r *Record) { r.Owner = Target })
		case Destroy:
			n.target = TargetAbsent
			if n.targetPod == PodAlive {
				n.targetPod = PodEnded
			}
		}
		if ok && n != w {
			out = append(out, step{"target: " + names[a], false, n})
		}
	}
	return out
}

func (r rules) controllerActs(w world) []step {
	var out []step
	for _, a := range r.controller(
		ControllerView{Record: w.seenByController, SourcePod: w.sourcePodSeen, TargetPod: w.targetPodSeen}) {
		n, ok := w, true
		switch a {
		case TransferOwnership:
			n, ok = swap(n, w.seenByController, func(r *Record) { r.Owner = Target })
		case RequestAbort:
			n, ok = swap(n, w.seenByController, func(r *Record) { r.Abort = true })
		case DeleteSource:
			n.deleteSource = true
		case DeleteTarget:
			n.deleteTarget = true
			now := ControllerView{Record: w.record, SourcePod: w.sourcePodSeen, TargetPod: w.targetPodSeen}
			ok = r.unread || slices.Contains(r.controller(now), a)
		case Finish:
			n, ok = swap(n, w.seenByController, func(r *Record) { r.Final = true })
		}
		if ok && n != w {
			out = append(out, step{"controller: " + names[a], false, n})
		}
	}
	return out
}

// observations update what source, target and controller have observed, one item at a time.
func observations(w world) []step {
	var out []step
	observe := func(name string, change func(*world)) {
		n := w
		change(&n)
		if n != w {
			out = append(out, step{name, false, n})
		}
	}
	observe("source observes the record", func(n *world) { n.seenBySource = n.record })
	observe("target observes the record", func(n *world) { n.seenByTarget = n.record })
	observe("controller observes the record", func(n *world) { n.seenByController = n.record })
	observe("controller observes the source's Pod", func(n *world) { n.sourcePodSeen = n.sourcePod })
	observe("controller observes the target's Pod", func(n *world) { n.targetPodSeen = n.targetPod })
	if w.message && !w.targetNodeDead {
		observe("the release arrives", func(n *world) { n.released, n.message = true, false })
		observe("the release arrives and is repeated", func(n *world) { n.released = true })
	}
	return out
}

// libvirtWorks are the steps of both libvirtds.
func (r rules) libvirtWorks(w world) []step {
	out := r.jobSteps(w)
	add := func(name string, fault bool, change func(*world)) {
		n := w
		change(&n)
		out = append(out, step{name, fault, n})
	}
	if w.dead {
		if w.lost {
			add("libvirt takes the exit of the source's QEMU for a crash", false, func(n *world) {
				n.source, n.job, n.call, n.dead = SourceEnded, noJob, noCall, false
			})
		}
		if w.call == attached && !w.deadSeen {
			add("the source's agent detects the exit of its QEMU", false, func(n *world) { n.deadSeen = true })
		}
	}
	if w.call == lingering && !w.dead {
		add("libvirtd detects that the agent's process has ended", false, func(n *world) {
			n.call = noCall
			if n.job != copying {
				n.job = noJob
				n.breakPostCopy()
			}
			if n.target == TargetReceiving && !n.lateFinish {
				n.target = TargetAbsent
			}
		})
	}
	if w.call == attached && w.job == copied && w.target == TargetReceiving {
		add("the target fails to complete, libvirt resumes the source's guest", true, func(n *world) {
			n.target, n.job, n.call = TargetAbsent, noJob, noCall
			if !n.breakPostCopy() {
				n.source = SourceRunning
			}
		})
		add("the source's agent stops waiting for the target's response", true,
			func(n *world) { n.lateFinish, n.call = true, lingering })
	}
	if w.call == attached && w.job == finished {
		add("the response is lost", true, func(n *world) { n.call = lingering })
	}
	if w.lateFinish {
		add("a late request completes the target's guest", false, func(n *world) {
			n.lateFinish = false
			if n.target == TargetReceiving {
				n.target = r.completed(w)
			}
		})
		add("a late request is dropped", false, func(n *world) {
			n.lateFinish = false
			if n.target == TargetReceiving {
				n.target = TargetAbsent
			}
		})
	}
	return out
}

// breakPostCopy interrupts a post-copy: the source's guest never runs again, and the target's continues if it runs.
func (w *world) breakPostCopy() bool {
	if w.source != SourcePostCopy {
		return false
	}
	w.source = SourceMigrated
	// This is the accepted risk of post-copy: before the target's guest runs, there is no guest that could continue.
	w.lost = w.lost || w.target != TargetRunning
	return true
}

// completed is the state of the target's guest after libvirt has completed it.
func (r rules) completed(w world) TargetDomain {
	if r.resumesItself || w.source == SourcePostCopy || w.source == SourceMigrated {
		return TargetRunning
	}
	return TargetComplete
}

// jobSteps are the next steps of the migration job.
func (r rules) jobSteps(w world) []step {
	n := w
	switch {
	case w.job == noJob:
		return nil
	case w.target == TargetAbsent && w.call != lingering && w.job != finished:
		n.job, n.call = noJob, noCall
		if w.job != copying && n.breakPostCopy() {
			return []step{{"post-copy fails: the target is gone", false, n}}
		}
		if w.call == attached || w.job == copying {
			n.source = SourceRunning
		}
		return []step{{"copying fails: the target is gone", false, n}}
	case w.job == copying && w.call == attached:
		return r.copySteps(w)
	case w.job == copying && w.call == noCall:
		n.target = TargetAbsent
		return []step{{"the target's libvirtd ends a guest without a migration", false, n}}
	case w.job == copied && w.call != noCall && w.target == TargetReceiving:
		n.job, n.target = finished, r.completed(w)
		return []step{{"libvirt completes the target's guest", w.call == lingering, n}}
	case w.job == finished:
		return confirmSteps(w)
	default:
		return nil
	}
}

// confirmSteps are the steps in which libvirt ends the source's guest after the target's is complete.
func confirmSteps(w world) []step {
	n := w
	switch {
	case w.call != noCall && w.source == SourceSuspended && !w.dead:
		n.dead = true
		return []step{{"libvirt ends the source's QEMU", w.call == lingering, n}}
	case w.call != noCall || w.dead:
		// From here on, libvirt reports what the agent has detected.
		n.source, n.job, n.call, n.dead, n.deadSeen = SourceMigrated, noJob, noCall, false, false
		return []step{{"libvirt ends the source's guest as migrated", w.call == lingering && !w.dead, n}}
	default:
		return nil
	}
}

// copySteps are the ways in which copying can end.
func (r rules) copySteps(w world) []step {
	n := w
	n.job = copied
	if w.source == SourcePostCopy {
		return []step{{"post-copy has begun, the target's guest may run", false, n}}
	}
	n.source = SourceSuspended
	out := []step{{"libvirt suspends the source's guest, the copy is complete", false, n}}
	if !r.postCopy {
		return out
	}
	if n, ok := swap(w, w.seenBySource, func(r *Record) { r.PostCopy = true }); ok && n != w {
		out = append(out, step{"source: record post-copy", false, n})
	}
	if w.seenBySource.PostCopy || r.unrecorded {
		n := w
		n.source = SourcePostCopy
		out = append(out, step{"libvirt begins post-copy", false, n})
	}
	return out
}

// kubeletsWork ends Pods whose guest has ended or that were deleted.
func kubeletsWork(w world) []step {
	var out []step
	add := func(name string, fault bool, change func(*world)) {
		n := w
		change(&n)
		if n != w {
			out = append(out, step{name, fault, n})
		}
	}
	if w.sourcePod == PodAlive && !w.sourceNodeDead {
		switch w.source {
		case SourceMigrated:
			add("the source's Pod ends as migrated", false, func(n *world) { n.source, n.sourcePod = SourceEnded, PodMigrated })
			add("the source's Pod ends, its termination message is lost", true, func(n *world) {
				n.source, n.sourcePod, n.lost = SourceEnded, PodEnded, true
			})
		case SourceEnded:
			add("the source's Pod ends", false, func(n *world) { n.sourcePod = PodEnded })
		}
		if w.deleteSource {
			add("the source's Pod is deleted", false, func(n *world) {
				if n.source == SourcePostCopy {
					// The target's guest still needed its memory.
					n.target = TargetAbsent
				}
				n.source, n.sourcePod, n.job, n.call, n.dead = SourceEnded, PodGone, noJob, noCall, false
			})
		}
	}
	if w.targetPod == PodAlive && w.target == TargetAbsent && w.record.Started && w.job == noJob && !w.targetNodeDead {
		add("the target's Pod ends without a guest", false, func(n *world) { n.targetPod = PodEnded })
	}
	if w.deleteTarget && w.targetPod == PodAlive && !w.targetNodeDead {
		add("the target's Pod is deleted", false, func(n *world) { n.target, n.targetPod = TargetAbsent, PodGone })
	}
	return append(out, podsVanish(w)...)
}

func endedUnlessGone(p PodFate) PodFate {
	if p == PodAlive {
		return PodEnded
	}
	return p
}

var names = map[Action]string{
	Start:             "Start",
	Transfer:          "Transfer",
	Cancel:            "Cancel",
	Resume:            "Resume",
	RecordFailure:     "RecordFailure",
	Release:           "Release",
	TransferOwnership: "TransferOwnership",
	Destroy:           "Destroy",
	Run:               "Run",
	TakeOwnership:     "TakeOwnership",
	RequestAbort:      "RequestAbort",
	DeleteSource:      "DeleteSource",
	DeleteTarget:      "DeleteTarget",
	Finish:            "Finish",
}
