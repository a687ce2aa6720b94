// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package node

import (
	"maps"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// State is what is known about a Node's agent.
type State struct {
	// Known says that the agent has a Lease or a report. A Node without is cleaned.
	Known bool
	// Pulse says whether the agent lives.
	Pulse Pulse
	// Ready says that the agent reported that VMs can be scheduled.
	Ready bool
	// Labels are the capability labels. Nil leaves those that the Node has.
	Labels map[string]string
}

// Schedulable says whether VMs can start on the Node.
func (s State) Schedulable() bool { return s.Known && s.Pulse.Alive && s.Ready }

// Apply changes a Node's labels and annotations in memory to what is known. The heartbeat alone changes at most
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

// markSilence notes that an agent fell silent without a goodbye. Of one that said goodbye its heartbeat tells when that was too
// long ago.
func markSilence(annotations map[string]string, pulse Pulse) {
	switch {
	case pulse.Alive || pulse.Left:
		delete(annotations, UnresponsiveAnnotation)
	case annotations[UnresponsiveAnnotation] == "" && !pulse.Last.IsZero():
		annotations[UnresponsiveAnnotation] = pulse.Last.UTC().Format(time.RFC3339)
	}
}

// Skipped says that the Node's owner does not want capability labels on it.
func Skipped(meta *metav1.ObjectMeta) bool {
	_, skip := meta.Annotations[SkipAnnotation]
	return skip
}

// Unresponsive says that a Node on which VMs could start has lost its agent without a goodbye.
func Unresponsive(meta *metav1.ObjectMeta, s State) bool {
	return meta.Labels[SchedulableLabel] == "true" && s.Known && !s.Pulse.Alive && !s.Pulse.Left
}

// Silent says that what is written on a Node shows that its agent let its Lease expire, or said goodbye and has not been heard
// of for Timeout. If it has been, and VMs still cannot start there, left is when to look again. A Node whose agent never was is not
// silent.
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

// set keeps a nil map nil, so that nothing differs where nothing is set.
func set(target *map[string]string, value map[string]string) {
	if len(value) == 0 && *target == nil {
		return
	}
	*target = value
}
