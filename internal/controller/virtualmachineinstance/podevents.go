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
