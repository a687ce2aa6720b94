// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package protocol

import "slices"

// job is a migration job of the source's libvirtd.
type job uint8

const (
	noJob job = iota
	copying
	// copied: the stream is complete and the source's guest is suspended.
	copied
	// finished: the target's libvirtd has completed its guest.
	finished
)

// call is the call of an agent's process to libvirt that a job was begun with.
type call uint8

const (
	noCall call = iota
	attached
	// lingering: its process is gone, and libvirtd has not noticed yet. A last request of it may still be carried out.
	lingering
)

// world is everything there is: what is true, and what each of the three last saw of it.
type world struct {
	record, seenBySource, seenByTarget, seenByController Record

	source SourceDomain
	target TargetDomain
	// stale reports whether the source's guest ran on after the target's was complete, or will have.
	stale bool
	job   job
	call  call
	// dead reports whether the source's QEMU has ended, which libvirt has not noticed yet, and deadSeen that the process of the source's
	// agent that had the target complete the guest has noticed.
	dead, deadSeen bool
	// lateFinish reports whether a request to complete the target's guest travels though its caller has given up.
	lateFinish bool

	// message is a release on its way; released says that the process of the target's agent has got it.
	message, released bool

	sourcePod, targetPod           Pod
	sourcePodSeen, targetPodSeen   Pod
	deleteSource, deleteTarget     bool
	sourceNodeDead, targetNodeDead bool
	// somethingHasDied reports whether a guest, a node or a launcher's last word was lost.
	somethingHasDied bool
}

// rules are the decisions under test.
type rules struct {
	source     func(SourceView) []Action
	target     func(TargetView) []Action
	controller func(ControllerView) []Action
	// locks has QEMU lock images, so that no guest goes on while another QEMU has them. Not every storage can.
	locks bool
	// postCopy has the source's agent ask for a post-copy, unrecorded before it has recorded that.
	postCopy, unrecorded bool
	// hasty has the source's agent take the answer that the target's guest is complete for the end of its own.
	hasty bool
	// unread has the controller delete the target's Pod by the record that it saw last.
	unread bool
	// resumesItself has libvirt let the target's guest run as soon as it is complete, as it does unless told otherwise.
	resumesItself bool
}

// step is one thing that can happen in a world.
type step struct {
	name  string
	fault bool
	after world
}

// steps are all that can happen next.
func (r rules) steps(w world) []step {
	var out []step
	out = append(out, r.sourceActs(w)...)
	out = append(out, r.targetActs(w)...)
	out = append(out, r.controllerActs(w)...)
	out = append(out, looks(w)...)
	out = append(out, r.libvirtWorks(w)...)
	out = append(out, kubeletsWork(w)...)
	out = append(out, callsFail(w)...)
	out = append(out, thingsDie(w)...)
	return out
}

// swap is a compare-and-swap on the record.
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
			out = append(out, step{"source: begin, then crash", true, n})
		}
	}
	return out
}

// sourceDoes is what an action of the source's agent makes of a world, unless it fails. Still says whether it would be decided
// on what the API server says now.
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
			// Its memory was the guest's at the target.
			w.target = TargetAbsent
		}
		w.source, w.dead = SourceEnded, false
	}
	return w, true // Transfer comes with Start, which it needs
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
	for _, a := range r.controller(ControllerView{Record: w.seenByController, SourcePod: w.sourcePodSeen, TargetPod: w.targetPodSeen}) {
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

// looks bring what somebody saw up to date, each thing on its own.
func looks(w world) []step {
	var out []step
	look := func(name string, change func(*world)) {
		n := w
		change(&n)
		if n != w {
			out = append(out, step{name, false, n})
		}
	}
	look("source looks", func(n *world) { n.seenBySource = n.record })
	look("target looks", func(n *world) { n.seenByTarget = n.record })
	look("controller looks at the record", func(n *world) { n.seenByController = n.record })
	look("controller looks at the source's Pod", func(n *world) { n.sourcePodSeen = n.sourcePod })
	look("controller looks at the target's Pod", func(n *world) { n.targetPodSeen = n.targetPod })
	if w.message && !w.targetNodeDead {
		look("the release arrives", func(n *world) { n.released, n.message = true, false })
		look("the release arrives, and will once more", func(n *world) { n.released = true })
	}
	return out
}

// libvirtWorks is what both libvirtds do when nothing goes wrong.
func (r rules) libvirtWorks(w world) []step {
	out := r.jobGoesOn(w)
	add := func(name string, fault bool, change func(*world)) {
		n := w
		change(&n)
		out = append(out, step{name, fault, n})
	}
	if w.dead {
		if w.somethingHasDied {
			add("libvirt takes the end of the source's QEMU for a crash", false, func(n *world) {
				n.source, n.job, n.call, n.dead = SourceEnded, noJob, noCall, false
			})
		}
		if w.call == attached && !w.deadSeen {
			add("the source's agent sees the end of its QEMU", false, func(n *world) { n.deadSeen = true })
		}
	}
	if w.call == lingering && !w.dead {
		add("libvirtd notices that the agent is gone", false, func(n *world) {
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
		add("the target refuses to complete, libvirt resumes the source's guest", true, func(n *world) {
			n.target, n.job, n.call = TargetAbsent, noJob, noCall
			if !n.breakPostCopy() {
				n.source = SourceRunning
			}
		})
		add("the source's agent does not wait any longer for the target's answer", true, func(n *world) { n.lateFinish, n.call = true, lingering })
	}
	if w.call == attached && w.job == finished {
		add("the answer gets lost", true, func(n *world) { n.call = lingering })
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

// breakPostCopy is what libvirt makes of a post-copy that nobody looks after any more: the source's guest never runs again,
// and the target's goes on if it runs.
func (w *world) breakPostCopy() bool {
	if w.source != SourcePostCopy {
		return false
	}
	w.source = SourceMigrated
	// A post-copy takes that risk: between the two there is no guest that could go on.
	w.somethingHasDied = w.somethingHasDied || w.target != TargetRunning
	return true
}

// completed is the state in which libvirt leaves the target's guest.
func (r rules) completed(w world) TargetDomain {
	if r.resumesItself || w.source == SourcePostCopy || w.source == SourceMigrated {
		return TargetRunning
	}
	return TargetComplete
}

// jobGoesOn is the next step of a migration job.
func (r rules) jobGoesOn(w world) []step {
	n := w
	switch {
	case w.job == noJob:
		return nil
	case w.target == TargetAbsent && w.call != lingering && w.job != finished:
		n.job, n.call = noJob, noCall
		if w.job != copying && n.breakPostCopy() {
			return []step{{"the post-copy breaks: the target is gone", false, n}}
		}
		if w.call == attached || w.job == copying {
			n.source = SourceRunning
		}
		return []step{{"copying fails: the target is gone", false, n}}
	case w.job == copying && w.call == attached:
		return r.copyingGoesOn(w)
	case w.job == copying && w.call == noCall:
		n.target = TargetAbsent
		return []step{{"the target's libvirtd ends what nobody asked for", false, n}}
	case w.job == copied && w.call != noCall && w.target == TargetReceiving:
		n.job, n.target = finished, r.completed(w)
		return []step{{"libvirt completes the target's guest", w.call == lingering, n}}
	case w.job == finished:
		return confirmGoesOn(w)
	default:
		return nil
	}
}

// confirmGoesOn is how libvirt ends the source's guest, which it has been told is at the target.
func confirmGoesOn(w world) []step {
	n := w
	switch {
	case w.call != noCall && w.source == SourceSuspended && !w.dead:
		n.dead = true
		return []step{{"libvirt ends the source's QEMU", w.call == lingering, n}}
	case w.call != noCall || w.dead:
		// What the agent saw is no more than what libvirt says from here on.
		n.source, n.job, n.call, n.dead, n.deadSeen = SourceMigrated, noJob, noCall, false, false
		return []step{{"libvirt ends the source's guest as migrated", w.call == lingering && !w.dead, n}}
	default:
		return nil
	}
}

// copyingGoesOn is how copying can go on.
func (r rules) copyingGoesOn(w world) []step {
	n := w
	n.job = copied
	if w.source == SourcePostCopy {
		return []step{{"the post-copy has begun, the target's guest may run", false, n}}
	}
	n.source = SourceSuspended
	out := []step{{"libvirt suspends the source's guest, all is copied", false, n}}
	if !r.postCopy {
		return out
	}
	if n, ok := swap(w, w.seenBySource, func(r *Record) { r.PostCopy = true }); ok && n != w {
		out = append(out, step{"source: record a post-copy", false, n})
	}
	if w.seenBySource.PostCopy || r.unrecorded {
		n := w
		n.source = SourcePostCopy
		out = append(out, step{"libvirt begins a post-copy", false, n})
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
			add("the source's Pod ends, its message is lost", true, func(n *world) {
				n.source, n.sourcePod, n.somethingHasDied = SourceEnded, PodEnded, true
			})
		case SourceEnded:
			add("the source's Pod ends", false, func(n *world) { n.sourcePod = PodEnded })
		}
		if w.deleteSource {
			add("the source's Pod is deleted", false, func(n *world) {
				if n.source == SourcePostCopy {
					// Its memory was the guest's at the target.
					n.target = TargetAbsent
				}
				n.source, n.sourcePod, n.job, n.call, n.dead = SourceEnded, PodGone, noJob, noCall, false
			})
		}
	}
	if w.targetPod == PodAlive && w.target == TargetAbsent && w.record.Started && w.job == noJob && !w.targetNodeDead {
		add("the target's Pod ends, its guest did not arrive", false, func(n *world) { n.targetPod = PodEnded })
	}
	if w.deleteTarget && w.targetPod == PodAlive && !w.targetNodeDead {
		add("the target's Pod is deleted", false, func(n *world) { n.target, n.targetPod = TargetAbsent, PodGone })
	}
	return append(out, podsVanish(w)...)
}

// podsVanish are Pods that somebody takes away, or with the node that they were on.
func podsVanish(w world) []step {
	var out []step
	add := func(name string, fault bool, change func(*world)) {
		n := w
		change(&n)
		out = append(out, step{name, fault, n})
	}
	if w.sourcePod == PodMigrated {
		add("somebody takes the source's Pod away, which has ended", true, func(n *world) {
			// Its last word is lost, unless it was heard.
			n.somethingHasDied = n.somethingHasDied || n.record.Owner == Source
			n.sourcePod = PodGone
		})
	}
	if w.sourceNodeDead && w.sourcePod == PodAlive {
		add("the source's node is fenced", false, func(n *world) { n.sourcePod = PodGone })
	}
	if w.targetNodeDead && w.targetPod == PodAlive {
		add("the target's node is fenced", false, func(n *world) { n.targetPod = PodGone })
	}
	return out
}

// callsFail are failures that no guest dies of.
func callsFail(w world) []step {
	var out []step
	add := func(name string, change func(*world)) {
		n := w
		change(&n)
		if n != w {
			out = append(out, step{name, true, n})
		}
	}
	if w.call == attached || w.deadSeen {
		add("the source's agent crashes", func(n *world) {
			n.deadSeen = false
			if n.call == attached {
				n.call = lingering
			}
		})
	}
	if w.call == attached && w.job == copying {
		add("copying fails", func(n *world) { n.source, n.job, n.call, n.target = SourceRunning, noJob, noCall, TargetAbsent })
	}
	if !w.targetNodeDead {
		add("the target's agent crashes", func(n *world) {
			n.released = false
			if n.target == TargetReceiving {
				n.target = TargetAbsent
			}
		})
	}
	add("the release is lost", func(n *world) { n.message = false })
	if !w.record.Final && w.record.Owner == Source && !w.record.Failed {
		add("somebody asks to abort", func(n *world) { n.record.Abort = true })
	}
	return out
}

// thingsDie are failures that a guest may die of.
func thingsDie(w world) []step {
	var out []step
	add := func(name string, change func(*world)) {
		n := w
		change(&n)
		n.somethingHasDied = true
		out = append(out, step{name, true, n})
	}
	sourceGone := func(n *world) {
		n.source, n.job, n.call, n.dead = SourceEnded, noJob, noCall, false
		if n.target == TargetReceiving && !n.lateFinish {
			n.target = TargetAbsent
		}
	}
	if !w.sourceNodeDead && (w.source == SourceRunning || w.source == SourceSuspended || w.source == SourcePostCopy) {
		add("the source's QEMU dies", sourceGone)
	}
	if !w.sourceNodeDead && w.source == SourceSuspended && w.job == finished && !w.dead {
		add("the source's QEMU dies, which libvirt has not noticed", func(n *world) { n.dead = true })
	}
	if !w.targetNodeDead && w.target != TargetAbsent {
		add("the target's QEMU dies", func(n *world) { n.target, n.targetPod = TargetAbsent, endedUnlessGone(n.targetPod) })
	}
	if !w.sourceNodeDead && w.sourcePod == PodAlive {
		add("the source's node dies", func(n *world) { sourceGone(n); n.deadSeen, n.sourceNodeDead = false, true })
	}
	if !w.targetNodeDead && w.targetPod == PodAlive {
		add("the target's node dies", func(n *world) { n.target, n.released, n.targetNodeDead = TargetAbsent, false, true })
	}
	return out
}

func endedUnlessGone(p Pod) Pod {
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
