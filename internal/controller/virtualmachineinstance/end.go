// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/migration"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// End is how a VMI ended.
type End struct {
	// Phase is Succeeded or Failed.
	Phase v1.VirtualMachineInstancePhase
	// Reason is a word, Message a sentence.
	Reason, Message string
}

// Caps on what a launcher Pod can put into a VMI: its guest may have taken it over. The kubelet itself caps a
// termination message at 4096 bytes.
const (
	maxOutcomeBytes  = 4096
	maxMessageLength = 1024
)

// outcomes are the reasons that a launcher may give; another one is not repeated.
var outcomes = map[string]bool{
	launcherpod.OutcomeShutdown:      true,
	launcherpod.OutcomeMigrated:      true,
	launcherpod.OutcomeDestroyed:     true,
	launcherpod.OutcomeNotStarted:    true,
	launcherpod.OutcomeCrashed:       true,
	launcherpod.OutcomePanicked:      true,
	launcherpod.OutcomeKilled:        true,
	launcherpod.OutcomeLibvirtFailed: true,
	launcherpod.OutcomeInternal:      true,
}

// readEnd finds out how the VMI ended once its Pod is finished or gone. A Pod that cannot be reached is neither: its
// guest may well run.
func readEnd(_ context.Context, s *Scope) error {
	switch {
	case s.stage() == vmistatus.Ended, s.End != nil, s.refused(), !s.mayEnd():
		return nil
	case s.migrating && PodState(s.Pod) == migration.PodMigrated:
		s.End = &End{Phase: v1.Failed, Reason: vmistatus.ReasonLostInMigration, Message: fmt.Sprintf("The guest had left node %s, and the launcher "+
			"Pod on node %s ended before it ran there.", s.VMI.Status.NodeName, s.VMI.Status.MigrationState.TargetNode)}
	case s.Pod != nil && finished(s.Pod):
		end := EndOf(s.Pod)
		if s.VMI.Spec.LivenessProbe != nil && stoppedByKubelet(s.Pod) && !s.deleting() {
			end = End{Phase: v1.Failed, Reason: ReasonLivenessProbeFailed, Message: "The livenessProbe failed as often as its " +
				"failureThreshold allows, so that the kubelet stopped the guest: " + end.Message}
		}
		if disruption := disruptionOf(s.Pod); disruption != "" {
			end.Message = strings.TrimSpace(end.Message + " " + disruption)
		}
		s.End = &end
	case s.Pod != nil:
		return nil
	case s.deleting():
		s.End = &End{
			Phase: v1.Succeeded, Reason: v1.PodNotExistsReason,
			Message: "The VirtualMachineInstance was deleted and has no launcher Pod any more.",
		}
	case s.absenceDecides() && s.NodeSilent:
		s.End = &End{
			Phase: v1.Failed, Reason: ReasonNodeUnresponsive,
			Message: fmt.Sprintf("The launcher Pod is gone from node %s, whose agent does not respond.", s.VMI.Status.NodeName),
		}
	case s.absenceDecides():
		s.End = &End{
			Phase: v1.Failed, Reason: v1.PodNotExistsReason,
			Message: "The launcher Pod is gone though nobody asked the VM to stop.",
		}
	}
	return nil
}

// ReasonLivenessProbeFailed is status.reason of a VMI whose guest was stopped because its livenessProbe failed.
const ReasonLivenessProbeFailed = "LivenessProbeFailed"

// stoppedByKubelet says that the launcher was told to stop though nobody deleted its Pod, and that the kubelet did not
// end the whole Pod, as for an eviction, of which the Pod's status tells. It does so when a liveness probe has failed.
func stoppedByKubelet(pod *corev1.Pod) bool {
	outcome, ok := outcomeOf(pod)
	return ok && outcome.Stopped && pod.DeletionTimestamp == nil && pod.Status.Reason == ""
}

// disruptionOf says who wanted the Pod gone, in words, if that was neither virt-controller nor a user: a drain, the scheduler for a
// Pod that is more important, or the kubelet.
func disruptionOf(pod *corev1.Pod) string {
	c := podCondition(pod, corev1.DisruptionTarget)
	switch {
	case c == nil || c.Status != corev1.ConditionTrue:
		return ""
	case c.Reason == "EvictionByEvictionAPI":
		return fmt.Sprintf("The launcher Pod was evicted from node %s, as a drain does.", pod.Spec.NodeName)
	default:
		return fmt.Sprintf("The launcher Pod had to leave node %s: %s (%s).", pod.Spec.NodeName, sentence(c.Message), word(c.Reason))
	}
}

// outcomeOf is what the launcher left behind, unless it is not from a virt-launcher that is itself: killed for its memory,
// or taken over.
func outcomeOf(pod *corev1.Pod) (launcherpod.Outcome, bool) {
	var outcome launcherpod.Outcome
	container := compute(pod)
	if container == nil || container.State.Terminated == nil || len(container.State.Terminated.Message) > maxOutcomeBytes {
		return outcome, false
	}
	err := json.Unmarshal([]byte(strings.TrimSpace(container.State.Terminated.Message)), &outcome)
	return outcome, err == nil && outcomes[outcome.Reason]
}

// reasonUnexplained is the reason of an end for which neither the launcher nor the kubelet gives one. The runtimes' word.
const reasonUnexplained = "Error"

// EndOf reads the end of a finished launcher Pod. The exit code decides; the termination message explains. Neither the
// reason nor the message is empty.
func EndOf(pod *corev1.Pod) End {
	container := compute(pod)
	if container == nil || container.State.Terminated == nil {
		// The kubelet ended the Pod and does not say how the launcher ended: an eviction, or a node that is full.
		end := End{Phase: v1.Failed, Reason: cmp.Or(word(pod.Status.Reason), reasonUnexplained), Message: cmp.Or(sentence(pod.Status.Message),
			fmt.Sprintf("The launcher Pod ended as %s, and its status does not say why.", cmp.Or(pod.Status.Phase, corev1.PodUnknown)))}
		if pod.Status.Phase == corev1.PodSucceeded {
			end.Phase = v1.Succeeded
		}
		return end
	}
	terminated := container.State.Terminated
	end := End{Phase: v1.Failed, Reason: cmp.Or(word(terminated.Reason), reasonUnexplained), Message: lastWords(terminated)}
	if terminated.ExitCode == 0 {
		end.Phase = v1.Succeeded
	}
	if outcome, ok := outcomeOf(pod); ok {
		end.Reason, end.Message = outcome.Reason, sentence(outcome.Message)
	}
	return end
}

// lastWords tell how a launcher ended that left no outcome. It was killed, say, or does not know a flag; the kubelet
// then has the end of its log.
func lastWords(ended *corev1.ContainerStateTerminated) string {
	how := fmt.Sprintf("virt-launcher ended with exit code %d", ended.ExitCode)
	const signaled = 128 // Runtimes add the signal's number to it.
	switch {
	case ended.Signal != 0:
		how = fmt.Sprintf("virt-launcher was ended by signal %d", ended.Signal)
	case ended.ExitCode > signaled:
		how += fmt.Sprintf(" (signal %d)", ended.ExitCode-signaled)
	}
	said := strings.TrimSpace(ended.Message)
	if said == "" {
		return how + " and left no message."
	}
	if runes := []rune(said); len(runes) > maxMessageLength {
		said = string(runes[len(runes)-maxMessageLength:]) // What comes last tells most.
	}
	return how + ": " + sentence(said)
}

// word keeps a reason a reason.
func word(s string) string {
	s = strings.Map(func(r rune) rune {
		if r <= unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return r
		}
		return -1
	}, s)
	const maxReasonLength = 128
	return s[:min(len(s), maxReasonLength)]
}

// sentence keeps a message readable in a terminal: no control characters, no endless text.
func sentence(s string) string {
	runes := make([]rune, 0, maxMessageLength)
	for _, r := range s {
		if len(runes) == maxMessageLength {
			break
		}
		if !unicode.IsPrint(r) {
			r = ' '
		}
		runes = append(runes, r)
	}
	return strings.TrimSpace(string(runes))
}
