// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package resize

import (
	"cmp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// resized are the resources of a container that can change while it runs.
var resized = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// State is how far the kubelet is with the resources of a Pod.
type State int

// States of the resources of a Pod.
const (
	// Done: the Pod has the resources of its spec, as far as the kubelet has reported.
	Done State = iota
	// Working: the kubelet changes them.
	Working
	// Deferred: the node has no room for them now.
	Deferred
	// Infeasible: the node will never have room for them, or the kubelet cannot change them.
	Infeasible
	// Failing: the kubelet has failed to change them, and retries.
	Failing
)

// Progress is what the kubelet reports about a change of a Pod's resources.
type Progress struct {
	State State
	// Message is the kubelet's.
	Message string
	// Since is when the state started.
	Since time.Time
}

// ProgressOf returns what the kubelet reports about a change of the resources of a Pod.
func ProgressOf(pod *corev1.Pod) Progress {
	pending, working := podstate.Condition(pod, corev1.PodResizePending),
		podstate.Condition(pod, corev1.PodResizeInProgress)
	switch {
	case pending != nil && pending.Status == corev1.ConditionTrue:
		state := Deferred
		if pending.Reason == corev1.PodReasonInfeasible {
			state = Infeasible
		}
		return Progress{State: state, Message: pending.Message, Since: pending.LastTransitionTime.Time}
	case working != nil && working.Status == corev1.ConditionTrue && working.Reason == corev1.PodReasonError:
		return Progress{State: Failing, Message: working.Message, Since: working.LastTransitionTime.Time}
	case !Applied(pod):
		return Progress{State: Working}
	default:
		return Progress{State: Done}
	}
}

// Applied reports whether the launcher's container has the resources of its spec. The kubelet reports the requests that
// it has allocated as they are in the spec; what it reports as used may be rounded, except for the limit of the memory.
func Applied(pod *corev1.Pod) bool {
	for _, kind := range []corev1.PodConditionType{corev1.PodResizePending, corev1.PodResizeInProgress} {
		if c := podstate.Condition(pod, kind); c != nil && c.Status == corev1.ConditionTrue {
			return false
		}
	}
	// Kubernetes before 1.34 does not report the generation.
	if seen := pod.Status.ObservedGeneration; seen != 0 && seen < pod.Generation {
		return false
	}
	compute, spec := podstate.Compute(pod), podstate.ComputeContainer(pod)
	if compute == nil || spec == nil {
		return false
	}
	for _, name := range resized {
		allocated, reported := compute.AllocatedResources[name]
		if reported && allocated.Cmp(spec.Resources.Requests[name]) != 0 {
			return false
		}
	}
	if compute.Resources == nil {
		return true
	}
	limit, limited := spec.Resources.Limits[corev1.ResourceMemory]
	used, reported := compute.Resources.Limits[corev1.ResourceMemory]
	return !limited || !reported || used.Cmp(limit) == 0
}

// Resizable returns those of a container's resources that can change while it runs. The caches of Pods contain no
// others.
func Resizable(all corev1.ResourceRequirements) corev1.ResourceRequirements {
	kept := func(list corev1.ResourceList) corev1.ResourceList {
		var out corev1.ResourceList
		for _, name := range resized {
			if quantity, found := list[name]; found {
				if out == nil {
					out = corev1.ResourceList{}
				}
				out[name] = quantity
			}
		}
		return out
	}
	return corev1.ResourceRequirements{Requests: kept(all.Requests), Limits: kept(all.Limits)}
}

// ResizedResources returns the resources of the launcher's container after a resize. now are those that it has, wanted
// those of a new Pod for the guest of the new size. Everything else about the container stays, also what an admission
// plugin has set. A resource grows only if the guest grows in it, and shrinks only if the guest shrinks in it.
// Otherwise a Pod from an earlier version or configuration would be resized without a change of its guest.
func ResizedResources(now, wanted corev1.ResourceRequirements, from, to Size) corev1.ResourceRequirements {
	out := *now.DeepCopy()
	// 1 is growth, -1 the opposite.
	directions := map[corev1.ResourceName]int{
		corev1.ResourceCPU: cmp.Compare(to.Sockets, from.Sockets), corev1.ResourceMemory: cmp.Compare(to.Memory, from.Memory),
	}
	if directions[corev1.ResourceMemory] == 0 {
		// QEMU needs memory for each vCPU.
		directions[corev1.ResourceMemory] = directions[corev1.ResourceCPU]
	}
	for _, name := range resized {
		direction := directions[name]
		before, requested := out.Requests[name]
		if direction == 0 || !requested {
			continue
		}
		request := further(before.DeepCopy(), wanted.Requests[name], direction)
		out.Requests[name] = request
		limit, limited := out.Limits[name]
		if !limited {
			continue
		}
		if want, given := wanted.Limits[name]; given {
			limit = further(limit.DeepCopy(), want, direction)
		} else if name == corev1.ResourceMemory {
			// A default of the namespace: the guest keeps what it had beyond its request.
			limit = limit.DeepCopy()
			limit.Add(request)
			limit.Sub(before)
		}
		if limit.Cmp(request) < 0 {
			limit = request.DeepCopy()
		}
		out.Limits[name] = limit
	}
	return out
}

// further returns the one of two quantities that is further in a direction.
func further(a, b resource.Quantity, direction int) resource.Quantity {
	if b.Cmp(a)*direction > 0 {
		return b.DeepCopy()
	}
	return a
}

// Obstacle returns why the resources of a VMI's Pod cannot change in place, or "".
func Obstacle(vmi *v1.VirtualMachineInstance, from, to Size) string {
	var found []string
	if vmi.IsCPUDedicated() && from != to {
		found = append(found, "the kubelet assigns dedicated CPUs only when a Pod starts")
	}
	if memory := vmi.Spec.Domain.Memory; memory != nil && memory.Hugepages != nil && from.Memory != to.Memory {
		found = append(found, "Kubernetes assigns huge pages only when a Pod starts")
	}
	return strings.Join(found, ", and ")
}

// Reasons of the VMI conditions HotVCPUChange and HotMemoryChange. KubeVirt sets none while a change is in progress.
const (
	// ReasonDeferred: the node has no room yet. The message is the kubelet's.
	ReasonDeferred = "PodResizeDeferred"
	// ReasonForbidden: a quota, a LimitRange or a policy refuses the new resources of the Pod.
	ReasonForbidden = "PodResizeForbidden"
	// ReasonFailing: the kubelet fails to change the Pod's resources, and retries.
	ReasonFailing = "PodResizeError"
	// ReasonGuest: the guest was granted its new size and does not have it yet.
	ReasonGuest = "WaitingForGuest"
	// ReasonMigration: the guest gets its new size by a migration.
	ReasonMigration = "MigrationRequired"
	// ReasonRestart: the guest gets its new size when it is restarted. The status of the condition is False.
	ReasonRestart = "RestartRequired"
)

// Patience is how long a node may have no room for the Pod's new resources before the guest has to migrate.
const Patience = 2 * time.Minute

// View is what a verdict depends on.
type View struct {
	// Obstacle is why the Pod's resources cannot change in place, or "". See Obstacle.
	Obstacle string
	// Forbidden is the API server's refusal of the resources by a quota or policy, and Refused any other refusal that a
	// retry does not change. Both are "" if there is none.
	Forbidden, Refused string
	// Progress is what the kubelet reports.
	Progress Progress
	// Unmigratable is why the guest does not migrate by itself, or "" if it does.
	Unmigratable string
	// Now is the time.
	Now time.Time
}

// Verdict is what is reported about a change that is not done.
type Verdict struct {
	// Restart reports whether the guest gets its new size only when it is restarted, and Migrate whether it migrates for
	// it.
	Restart, Migrate bool
	// Reason and Message are those of the condition. They are empty while nothing hinders the change.
	Reason, Message string
	// Again is when the verdict may change without an event, or 0.
	Again time.Duration
}

// retry is the interval after which refused resources are tried again. No event reports that a quota has room.
const retry = 30 * time.Second

// Judge returns what is reported about a change, and whether it needs another Pod.
func Judge(v View) Verdict {
	switch waited := v.Now.Sub(v.Progress.Since); {
	case v.Obstacle != "":
		return v.elsewhere(v.Obstacle)
	case v.Refused != "":
		return v.elsewhere("the API server refuses the new resources of the launcher Pod: " + v.Refused)
	case v.Forbidden != "":
		return Verdict{Reason: ReasonForbidden, Again: retry,
			Message: "The launcher Pod may not have the resources, so the guest keeps its size: " + v.Forbidden}
	case v.Progress.State == Infeasible:
		return v.elsewhere("the node cannot resize the launcher Pod: " + v.Progress.Message)
	case v.Progress.State == Deferred && waited >= Patience:
		return v.elsewhere("the node has no room for the larger launcher Pod: " + v.Progress.Message)
	case v.Progress.State == Deferred:
		return Verdict{
			Reason: ReasonDeferred, Again: Patience - waited,
			Message: "The node has no room for the larger launcher Pod yet, so the guest keeps its size: " + v.Progress.Message,
		}
	case v.Progress.State == Failing:
		return Verdict{Reason: ReasonFailing,
			Message: "The kubelet fails to resize the launcher Pod, and retries: " + v.Progress.Message}
	default:
		return Verdict{}
	}
}

// elsewhere returns the verdict about a change that needs another Pod.
func (v *View) elsewhere(why string) Verdict {
	if v.Unmigratable == "" {
		return Verdict{Migrate: true, Reason: ReasonMigration, Message: "The guest gets its new size by a migration: " + why}
	}
	return Verdict{
		Restart: true, Reason: ReasonRestart,
		Message: "Restart the VM to apply its new size: " + why + ". It does not migrate automatically: " + v.Unmigratable,
	}
}
