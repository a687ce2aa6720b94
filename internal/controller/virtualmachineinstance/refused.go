// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/eventtime"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// podEventIndex finds events by the UID of the Pod that they are about. The API server has a field selector of the same
// name.
const podEventIndex = "involvedObject.uid"

// startFailures are the reasons of events that report why a Pod gets no sandbox: a volume, such as a Secret that does
// not exist, cannot be mounted, or the network cannot be set up. The status of the Pod has only ContainerCreating then.
// Source: kubernetes pkg/kubelet/events/event.go; the attach controller uses FailedAttachVolume as well.
var startFailures = map[string]bool{
	"FailedMount":            true,
	"FailedMapVolume":        true,
	"FailedAttachVolume":     true,
	"FailedCreatePodSandBox": true,
	"NetworkNotReady":        true,
}

// alternation is the time within which failures of a Pod count as the same one. The kubelet retries each volume within
// about two minutes, and the message about a sandbox has another name each time: without this the status would be
// written with every attempt.
const alternation = 3 * time.Minute

// IsStartFailure reports whether an event has the reason why a launcher Pod or an attachment Pod cannot start.
func IsStartFailure(e *corev1.Event) bool {
	return e.Type == corev1.EventTypeWarning && startFailures[e.Reason] && e.InvolvedObject.Kind == "Pod" &&
		(strings.HasPrefix(e.InvolvedObject.Name, launcherpod.AppLabelValue+"-") ||
			strings.HasPrefix(e.InvolvedObject.Name, launcherpod.AttachmentPrefix))
}

// readPodEvents takes from events why a Pod that has a node does not start, unless the Pod's status has the reason.
func (s *scope) readPodEvents(ctx context.Context) error {
	if !s.preparing() || s.problem != nil || !startsOnNode(s.pod) || podProblem(s.pod) != nil {
		return nil
	}
	failures, err := s.startFailures(ctx, s.pod)
	if err != nil || len(failures) == 0 {
		return err
	}
	if wait := s.pod.CreationTimestamp.Add(patience).Sub(s.now); wait > 0 {
		// The first attempt often fails because the kubelet has not fetched what it needs. The second succeeds.
		s.requeueAfter = outcome.Sooner(s.requeueAfter, wait)
		return nil
	}
	s.problem = startProblem(s.pod, failures,
		vmistatus.FindCondition(&s.vmi.Status, v1.VirtualMachineInstanceSynchronized))
	return nil
}

// startFailures returns the events that have the reason why a Pod does not start.
func (s *scope) startFailures(ctx context.Context, pod *corev1.Pod) ([]corev1.Event, error) {
	list := &corev1.EventList{}
	err := s.client.List(ctx, list, client.InNamespace(pod.Namespace),
		client.MatchingFields{podEventIndex: string(pod.UID)})
	if err != nil {
		return nil, fmt.Errorf("list events of Pod %s: %w", pod.Name, err)
	}
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return !IsStartFailure(&e) }), nil
}

// startsOnNode reports whether a kubelet prepares the Pod and has not set up its sandbox: volumes are mounted and the
// network is set up before. Events report failures only; success is in the condition PodReadyToStartContainers.
func startsOnNode(pod *corev1.Pod) bool {
	if pod == nil || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || podstate.Running(pod) ||
		podstate.Finished(pod) {
		return false
	}
	sandbox := podstate.Condition(pod, corev1.PodReadyToStartContainers)
	return sandbox == nil || sandbox.Status != corev1.ConditionTrue
}

// startProblem returns the latest failure, or the one that the status has already as long as it may be just as recent.
func startProblem(pod *corev1.Pod, failures []corev1.Event, reported *v1.VirtualMachineInstanceCondition) *problem {
	slices.SortFunc(failures, func(a, b corev1.Event) int {
		return cmp.Or(eventtime.LastObserved(&b).Compare(eventtime.LastObserved(&a)), strings.Compare(a.Name, b.Name))
	})
	latest := startProblemOf(pod, &failures[0])
	for i := range failures {
		if eventtime.LastObserved(&failures[0]).Sub(eventtime.LastObserved(&failures[i])) > alternation {
			break
		}
		known := startProblemOf(pod, &failures[i])
		if reported != nil && reported.Reason == known.reason && reported.Message == known.message &&
			known.reason == latest.reason {
			return known
		}
	}
	return latest
}

// podTitle names a Pod of a VMI in a message.
func podTitle(pod *corev1.Pod) string {
	if podspec.AttachmentUser(pod) != "" {
		return "Attachment Pod " + pod.Name
	}
	return "Launcher Pod " + pod.Name
}

func startProblemOf(pod *corev1.Pod, e *corev1.Event) *problem {
	return &problem{reason: e.Reason, message: podTitle(pod) + ": " + cleanMessage(e.Message)}
}

// ReasonPodRefused is the reason if a kubelet refuses the launcher Pod without one.
const ReasonPodRefused = "PodRefused"

// Limits of the pause between a Pod that a kubelet refused and the next one. The least is about what a device plugin
// needs to register again; the greatest suits a node that will go on refusing.
const (
	firstPause = 2 * time.Second
	lastPause  = time.Minute
)

// refused reports whether the launcher Pod of a VMI that prepares failed before any of its containers ran. Another Pod
// may start: a device plugin was not registered for a moment, the node had less room than the scheduler assumed, or was
// about to shut down.
//
// A Pod that is deleted while the phase is Scheduling is not refused: as in KubeVirt, that ends the VMI.
func (o *observed) refused() bool {
	if o.pod == nil || !o.preparing() || !unused(o.pod) {
		return false
	}
	return o.vmi.Labels[v1.NodeNameLabel] == "" && (o.pod.DeletionTimestamp == nil || o.vmi.Status.Phase != v1.Scheduling)
}

// unused reports whether a launcher Pod failed without any of its containers having run. The readiness gate is written
// before an agent can start the guest: with it the Pod was used, even if a restarted kubelet has lost the state of its
// containers.
func unused(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodFailed || podstate.Condition(pod, v1.VirtualMachineUnpaused) != nil {
		return false
	}
	containers := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
		pod.Status.EphemeralContainerStatuses)
	return !slices.ContainsFunc(containers, func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil ||
			c.RestartCount > 0
	})
}

// retryAt is when a refused Pod is replaced. created is when it was created, since when the VMI's first Pod was, zero
// if this is the first. The pause is as long as the attempts before this Pod took, so that it doubles without a
// counter.
func retryAt(created, since time.Time) time.Time {
	if since.IsZero() {
		return created.Add(firstPause)
	}
	return created.Add(min(max(created.Sub(since), firstPause), lastPause))
}

// removeRefused deletes the refused Pod, whose name the next one needs, and reports whether the next one can be
// created. It does so only when the status no longer has a Pod: otherwise, if this process stopped before the next Pod,
// the absence would end the VMI.
func (s *scope) removeRefused(ctx context.Context) (bool, error) {
	if s.problem != nil || s.final != nil || s.importing {
		return false, nil // Another Pod could not be made.
	}
	s.problem = refusal(s.pod)
	if s.pod.DeletionTimestamp != nil {
		return false, nil
	}
	if wait := retryAt(s.pod.CreationTimestamp.Time, s.firstPod()).Sub(s.now); wait > 0 {
		s.requeueAfter = outcome.Sooner(s.requeueAfter, wait)
		return false, nil
	}
	if s.vmi.Status.Phase == v1.Scheduling {
		return false, nil // The write of the status triggers another reconciliation.
	}
	// The API server removes a finished Pod at once, without waiting for the kubelet.
	err := s.client.Delete(ctx, s.pod, client.Preconditions{UID: ptr.To(s.pod.UID)})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// The cache is stale: the Pod is gone, and there may be another one.
	case err != nil:
		return false, fmt.Errorf("delete launcher Pod %s, which was refused: %w", s.pod.Name, err)
	default:
		s.event(corev1.EventTypeNormal, ReasonSuccessfulDelete, actionDelete,
			"Deleted virtual machine pod %s, which never ran", s.pod.Name)
	}
	s.pod, s.problem = nil, nil
	return true, nil
}

func refusal(pod *corev1.Pod) *problem {
	return &problem{
		reason: cmp.Or(cleanReason(pod.Status.Reason), ReasonPodRefused),
		message: fmt.Sprintf("Launcher Pod %s failed on node %s before it ran, and is created again: %s",
			pod.Name, cmp.Or(pod.Spec.NodeName, "<none>"), cleanMessage(pod.Status.Message)),
	}
}

// firstPod is when the VMI's first Pod was created, or zero if the status does not have it.
func (o *observed) firstPod() time.Time { return o.enteredAt(v1.Scheduling) }

// enteredAt is when the VMI entered a phase, or zero if the status does not have it.
func (o *observed) enteredAt(phase v1.VirtualMachineInstancePhase) time.Time {
	for _, stamp := range o.vmi.Status.PhaseTransitionTimestamps {
		if stamp.Phase == phase {
			return stamp.PhaseTransitionTimestamp.Time
		}
	}
	return time.Time{}
}

// setRefused reports a VMI whose Pod was refused as one without a Pod.
func setRefused(o *observed, status *v1.VirtualMachineInstanceStatus) {
	stampPassed(o, status)
	vmistatus.SetPhase(status, v1.Pending, metav1.NewTime(o.now))
	setNotReady(o, status, v1.PodNotExistsReason, "There is no launcher Pod: the last one failed before it ran.")
}
