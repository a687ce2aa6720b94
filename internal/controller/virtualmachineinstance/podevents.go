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
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// PodEventIndex finds events by the Pod that they are about. The API server has a selector of the same name.
const PodEventIndex = "involvedObject.uid"

// startFailures are the reasons of events that tell what keeps a Pod from getting its sandbox: volumes that cannot be
// mounted, such as a Secret that does not exist, and a network that cannot be set up. The Pod's status only says
// ContainerCreating then.
// Source: kubernetes pkg/kubelet/events/event.go; FailedAttachVolume is the attach controller's as well.
var startFailures = map[string]bool{
	"FailedMount":            true,
	"FailedMapVolume":        true,
	"FailedAttachVolume":     true,
	"FailedCreatePodSandBox": true,
	"NetworkNotReady":        true,
}

// alternation is the time within which a Pod's failures are taken for the same one. The kubelet tries each volume again
// within about two minutes, and a failed sandbox has another name in its message each time: the first words stay while
// they are as young as that, so that a VMI that waits is not written at every attempt.
const alternation = 3 * time.Minute

// IsStartFailure says whether an event tells why a launcher Pod cannot start.
func IsStartFailure(e *corev1.Event) bool {
	return e.Type == corev1.EventTypeWarning && startFailures[e.Reason] && e.InvolvedObject.Kind == "Pod" &&
		strings.HasPrefix(e.InvolvedObject.Name, podspec.LauncherAppValue+"-")
}

// readPodEvents takes from events why a Pod that has a node does not start, if the Pod itself does not say.
func readPodEvents(ctx context.Context, s *Scope) error {
	if !s.preparing() || s.Problem != nil || !startsOnNode(s.Pod) || podProblem(s.Pod) != nil {
		return nil
	}
	list := &corev1.EventList{}
	err := s.Client.List(ctx, list, client.InNamespace(s.Pod.Namespace), client.MatchingFields{PodEventIndex: string(s.Pod.UID)})
	if err != nil {
		return fmt.Errorf("list events of launcher Pod %s: %w", s.Pod.Name, err)
	}
	failures := slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return !IsStartFailure(&e) })
	if len(failures) == 0 {
		return nil
	}
	if wait := s.Pod.CreationTimestamp.Add(patience).Sub(s.Now); wait > 0 {
		// The first attempt often comes before the kubelet has fetched what it needs; the second succeeds.
		s.RequeueAfter = wait
		return nil
	}
	s.Problem = startProblem(s.Pod, failures, vmistatus.FindCondition(&s.VMI.Status, v1.VirtualMachineInstanceSynchronized))
	return nil
}

// startsOnNode says that a kubelet prepares the Pod and has not got as far as its sandbox, before which the volumes are
// mounted and the network is set up. Events tell what failed; that it has succeeded only this condition tells.
func startsOnNode(pod *corev1.Pod) bool {
	if pod == nil || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || Running(pod) || finished(pod) {
		return false
	}
	sandbox := podCondition(pod, corev1.PodReadyToStartContainers)
	return sandbox == nil || sandbox.Status != corev1.ConditionTrue
}

// startProblem tells the latest failure, or the one that is told already while it may be just as true.
func startProblem(pod *corev1.Pod, failures []corev1.Event, told *v1.VirtualMachineInstanceCondition) *Problem {
	slices.SortFunc(failures, func(a, b corev1.Event) int {
		return cmp.Or(lastSeen(&b).Compare(lastSeen(&a)), strings.Compare(a.Name, b.Name))
	})
	latest := startProblemOf(pod, &failures[0])
	for i := range failures {
		if lastSeen(&failures[0]).Sub(lastSeen(&failures[i])) > alternation {
			break
		}
		known := startProblemOf(pod, &failures[i])
		if told != nil && told.Reason == known.Reason && told.Message == known.Message && known.Reason == latest.Reason {
			return known
		}
	}
	return latest
}

func startProblemOf(pod *corev1.Pod, e *corev1.Event) *Problem {
	return &Problem{Reason: e.Reason, Message: fmt.Sprintf("Launcher Pod %s: %s", pod.Name, sentence(e.Message))}
}

// lastSeen is when an event happened last. Which field has it depends on the client that made it.
func lastSeen(e *corev1.Event) time.Time {
	latest := e.LastTimestamp.Time
	others := []time.Time{e.EventTime.Time, e.CreationTimestamp.Time}
	if e.Series != nil {
		others = append(others, e.Series.LastObservedTime.Time)
	}
	for _, t := range others {
		if t.After(latest) {
			latest = t
		}
	}
	return latest
}
