// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package protocol

// podsVanish are deletions of Pods by others, and fenced nodes.
func podsVanish(w world) []step {
	var out []step
	add := func(name string, fault bool, change func(*world)) {
		n := w
		change(&n)
		out = append(out, step{name, fault, n})
	}
	if w.sourcePod == PodMigrated {
		add("the ended source's Pod is deleted by a third party", true, func(n *world) {
			// The termination message is lost, unless it was already observed.
			n.lost = n.lost || n.record.Owner == Source
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

// recoverableFaults are faults that do not end a guest.
func recoverableFaults(w world) []step {
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
		add("copying fails", func(n *world) {
			n.source, n.job, n.call, n.target = SourceRunning, noJob, noCall,
				TargetAbsent
		})
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
		add("a client requests an abort", func(n *world) { n.record.Abort = true })
	}
	return out
}

// fatalFaults are faults that may end a guest.
func fatalFaults(w world) []step {
	var out []step
	add := func(name string, change func(*world)) {
		n := w
		change(&n)
		n.lost = true
		out = append(out, step{name, true, n})
	}
	sourceGone := func(n *world) {
		n.source, n.job, n.call, n.dead = SourceEnded, noJob, noCall, false
		if n.target == TargetReceiving && !n.lateFinish {
			n.target = TargetAbsent
		}
	}
	if !w.sourceNodeDead && (w.source == SourceRunning || w.source == SourceSuspended || w.source == SourcePostCopy) {
		add("the source's QEMU crashes", sourceGone)
	}
	if !w.sourceNodeDead && w.source == SourceSuspended && w.job == finished && !w.dead {
		add("the source's QEMU crashes, not yet detected by libvirt", func(n *world) { n.dead = true })
	}
	if !w.targetNodeDead && w.target != TargetAbsent {
		add("the target's QEMU crashes",
			func(n *world) { n.target, n.targetPod = TargetAbsent, endedUnlessGone(n.targetPod) })
	}
	if !w.sourceNodeDead && w.sourcePod == PodAlive {
		add("the source's node fails", func(n *world) { sourceGone(n); n.deadSeen, n.sourceNodeDead = false, true })
	}
	if !w.targetNodeDead && w.targetPod == PodAlive {
		add("the target's node fails", func(n *world) { n.target, n.released, n.targetNodeDead = TargetAbsent, false, true })
	}
	return out
}
