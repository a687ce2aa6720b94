// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package tracing

import (
	"slices"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/otlp"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Names of spans that are not those of phases or of conditions of a Pod.
const (
	startSpan     = "VirtualMachineInstance start"
	requestedSpan = "Requested"
	launcherSpan  = "ContainerStarted"
)

// startKey is the key of the trace of a VMI's start.
func startKey(vmi types.UID) string { return "start/" + string(vmi) }

// startEnd returns the timestamp of the phase that ends the start of a VMI, or nil: its guest runs, or has failed to
// start.
func startEnd(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstancePhaseTransitionTimestamp {
	for i := range vmi.Status.PhaseTransitionTimestamps {
		switch stamp := &vmi.Status.PhaseTransitionTimestamps[i]; stamp.Phase {
		case v1.Running, v1.Succeeded, v1.Failed:
			return stamp
		}
	}
	return nil
}

// start returns the trace of a VMI whose start has ended. Pod is its launcher Pod, or nil; requested is when the VM's
// start was requested, or zero if that is unknown or there is no VM.
func start(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, requested time.Time) *otlp.Span {
	end := startEnd(vmi)
	created := vmi.CreationTimestamp.Time
	t := timeline{{string(v1.VmPhaseUnset), created}}
	if !requested.IsZero() && requested.Before(created) {
		t = timeline{{requestedSpan, requested}, {string(v1.VmPhaseUnset), created}}
	}
	for _, stamp := range vmi.Status.PhaseTransitionTimestamps {
		if stamp.Phase == end.Phase {
			break
		}
		t = append(t, step{string(stamp.Phase), stamp.PhaseTransitionTimestamp.Time})
	}
	root := t.trace(startSpan, end.PhaseTransitionTimestamp.Time)
	root.Attributes = append(root.Attributes, semconv.K8SNamespaceName(vmi.Namespace),
		otlp.Text("kubevirt.vmi.name", vmi.Name), otlp.Text("kubevirt.vmi.uid", string(vmi.UID)))
	if vm := vmistatus.VMOf(vmi); vm != nil {
		root.Attributes = append(root.Attributes, otlp.Text("kubevirt.vm.name", vm.Name))
	}
	if pod != nil {
		root.Attributes = append(root.Attributes, semconv.K8SPodName(pod.Name))
		if pod.Spec.NodeName != "" {
			root.Attributes = append(root.Attributes, semconv.K8SNodeName(pod.Spec.NodeName))
		}
		t.addPod(root, string(v1.Scheduling), pod)
	}
	if end.Phase != v1.Running {
		fail(root, startFailure(vmi))
	}
	return root
}

// startFailure returns why a guest has not started.
func startFailure(vmi *v1.VirtualMachineInstance) string {
	message := "The guest did not start."
	if ready := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceReady); ready != nil && ready.Message != "" {
		message = ready.Message
	}
	if vmi.Status.Reason == "" {
		return message
	}
	return vmi.Status.Reason + ": " + message
}

// step is a state, and since when it lasts.
type step struct {
	name  string
	since time.Time
}

// timeline is a sequence of states, each of which ends when the next one starts.
type timeline []step

// trace returns a span with one child for each state. The timestamps come from different clocks: a state that seems to
// start before its predecessor has ended starts at that end.
func (t timeline) trace(name string, end time.Time) *otlp.Span {
	root := &otlp.Span{Name: name, Start: t[0].since, End: t[0].since}
	for i, s := range t {
		from, to := later(s.since, root.End), end
		if i+1 < len(t) {
			to = t[i+1].since
		}
		root.End = later(from, to)
		if s.name != "" {
			root.Children = append(root.Children, otlp.Span{Name: s.name, Start: from, End: root.End})
		}
	}
	return root
}

// addPod adds the steps of a launcher Pod's start to the span of a phase.
func (t timeline) addPod(root *otlp.Span, phase string, pod *corev1.Pod) {
	i := slices.IndexFunc(root.Children, func(s otlp.Span) bool { return s.Name == phase })
	if i < 0 {
		return
	}
	// Unlike the timestamps of phases, these are the ends of the steps and not their starts.
	var ends []step
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReadyToStartContainers,
		corev1.PodInitialized} {
		if c := podstate.Condition(pod, kind); c != nil && c.Status == corev1.ConditionTrue &&
			!c.LastTransitionTime.IsZero() {
			ends = append(ends, step{string(kind), c.LastTransitionTime.Time})
		}
	}
	if compute := podstate.Compute(pod); compute != nil && compute.State.Running != nil &&
		!compute.State.Running.StartedAt.IsZero() {
		ends = append(ends, step{launcherSpan, compute.State.Running.StartedAt.Time})
	}
	slices.SortStableFunc(ends, func(a, b step) int { return a.since.Compare(b.since) })
	parent := &root.Children[i]
	from := later(pod.CreationTimestamp.Time, parent.Start)
	for _, s := range ends {
		to := later(from, s.since)
		if to.After(parent.End) {
			break // The Pod's condition has changed since.
		}
		parent.Children = append(parent.Children, otlp.Span{Name: s.name, Start: from, End: to})
		from = to
	}
}

// fail marks a trace and the state in which it ended as failed.
func fail(root *otlp.Span, reason string) {
	root.Failure = reason
	if n := len(root.Children); n > 0 {
		root.Children[n-1].Failure = root.Failure
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
