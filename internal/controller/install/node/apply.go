// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package node

import (
	"maps"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// State is what virt-controller has observed of a Node's agent.
type State struct {
	// Known reports whether the agent has a Lease. Our labels and annotations are removed from a Node without one.
	Known bool
	// Pulse reports whether the agent is alive.
	Pulse Pulse
	// Ready reports whether the agent reported that VMs can be scheduled.
	Ready bool
	// Labels are the capability labels. Nil keeps the current ones.
	Labels map[string]string
}

// Schedulable reports whether VMs can start on the Node.
func (s State) Schedulable() bool { return s.Known && s.Pulse.Alive && s.Ready }

// Apply sets a Node's labels and annotations in memory from the state of its agent. It updates the heartbeat at most
// once per HeartbeatInterval.
func Apply(meta *metav1.ObjectMeta, s State) {
	labels, annotations := maps.Clone(meta.Labels), maps.Clone(meta.Annotations)
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	switch {
	case !s.Known:
		removeOwned(labels)
		delete(labels, SchedulableLabel)
		delete(annotations, HeartbeatAnnotation)
		delete(annotations, UnresponsiveAnnotation)
	default:
		labels[SchedulableLabel] = strconv.FormatBool(s.Schedulable())
		if s.Labels != nil && !Skipped(meta) {
			removeOwned(labels)
			maps.Copy(labels, s.Labels)
		}
		if s.Pulse.Alive && due(annotations[HeartbeatAnnotation], s.Pulse.Last) {
			annotations[HeartbeatAnnotation] = s.Pulse.Last.UTC().Format(time.RFC3339)
		}
		markSilence(annotations, s.Pulse)
	}
	set(&meta.Labels, labels)
	set(&meta.Annotations, annotations)
}

// markSilence sets UnresponsiveAnnotation if the agent's Lease has expired, but not if the agent has released it: then
// the heartbeat annotation shows how long ago that was.
func markSilence(annotations map[string]string, pulse Pulse) {
	switch {
	case pulse.Alive || pulse.Released:
		delete(annotations, UnresponsiveAnnotation)
	case annotations[UnresponsiveAnnotation] == "" && !pulse.Last.IsZero():
		annotations[UnresponsiveAnnotation] = pulse.Last.UTC().Format(time.RFC3339)
	}
}

// Skipped reports whether the Node has SkipAnnotation, and so gets no capability labels.
func Skipped(meta *metav1.ObjectMeta) bool {
	_, skip := meta.Annotations[SkipAnnotation]
	return skip
}

// Unresponsive reports whether the Node is still labeled schedulable although its agent's Lease has expired.
func Unresponsive(meta *metav1.ObjectMeta, s State) bool {
	return meta.Labels[SchedulableLabel] == "true" && s.Known && !s.Pulse.Alive && !s.Pulse.Released
}

// Silent reports whether a Node's annotations show that its agent's Lease expired, or that the agent released its Lease
// more than Timeout ago. If the Node is unschedulable and Timeout has not passed, left is the time until it has. A Node
// that never had an agent is not silent.
func Silent(meta *metav1.ObjectMeta, now time.Time) (silent bool, left time.Duration) {
	if meta.Annotations[UnresponsiveAnnotation] != "" {
		return true, 0
	}
	if meta.Labels[SchedulableLabel] != strconv.FormatBool(false) {
		return false, 0
	}
	last, err := time.Parse(time.RFC3339, meta.Annotations[HeartbeatAnnotation])
	if err != nil {
		return false, 0
	}
	if left := last.Add(Timeout).Sub(now); left > 0 {
		return false, left
	}
	return true, 0
}

func due(written string, last time.Time) bool {
	at, err := time.Parse(time.RFC3339, written)
	return err != nil || last.Sub(at) >= HeartbeatInterval || at.After(last)
}

func removeOwned(labels map[string]string) {
	maps.DeleteFunc(labels, func(key, _ string) bool { return owned(key) })
}

// set keeps a nil map nil if there is nothing to set, so that no patch results.
func set(target *map[string]string, value map[string]string) {
	if len(value) == 0 && *target == nil {
		return
	}
	*target = value
}
