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
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// finalState is the state of a VMI that has ended.
type finalState struct {
	// phase is Succeeded or Failed.
	phase v1.VirtualMachineInstancePhase
	// reason is an identifier in CamelCase, message a sentence. Neither is empty.
	reason, message string
}

// Caps on what of a launcher Pod's status gets into a VMI: a guest may have taken the launcher over. The kubelet itself
// caps a termination message at 4096 bytes.
const (
	maxOutcomeBytes  = 4096
	maxMessageLength = 1024
)

// outcomes are the reasons that a launcher may give. Others are not copied into the VMI.
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

// decideFinalState ends the VMI once its Pod is finished or gone. A Pod on a node that does not respond is neither: its
// guest may still run.
func (s *scope) decideFinalState(_ context.Context) error {
	switch {
	case s.stage() == vmistatus.Ended, s.final != nil, s.refused(), !s.mayEnd():
		return nil
	case s.migrating && PodFate(s.pod) == protocol.PodMigrated:
		s.final = &finalState{phase: v1.Failed, reason: vmistatus.ReasonLostInMigration, message: fmt.Sprintf(
			"The guest was migrated from node %s, and the launcher Pod on node %s ended before it ran there.",
			s.vmi.Status.NodeName, s.vmi.Status.MigrationState.TargetNode)}
	case s.pod != nil && podstate.Finished(s.pod):
		end := finalStateOf(s.pod)
		if s.vmi.Spec.LivenessProbe != nil && stoppedByKubelet(s.pod) && !s.deleting() {
			end = finalState{phase: v1.Failed, reason: ReasonLivenessProbeFailed,
				message: "The livenessProbe failed as often as its " +
					"failureThreshold allows, so that the kubelet stopped the guest: " + end.message}
		}
		if disruption := disruptionOf(s.pod); disruption != "" {
			end.message = asSentence(end.message) + " " + disruption
			if !s.deleting() {
				end.phase = v1.Failed // No user requested that the VM stops.
			}
		}
		s.final = &end
	case s.pod != nil:
		return nil
	case s.deleting():
		s.final = &finalState{
			phase: v1.Succeeded, reason: v1.PodNotExistsReason,
			message: "The VirtualMachineInstance was deleted and has no launcher Pod any more.",
		}
	case s.absenceDecides() && s.silence != nil:
		s.final = &finalState{
			phase: v1.Failed, reason: ReasonNodeUnresponsive,
			message: fmt.Sprintf("The launcher Pod is gone from node %s, whose agent does not respond.", s.vmi.Status.NodeName),
		}
	case s.absenceDecides():
		s.final = &finalState{
			phase: v1.Failed, reason: v1.PodNotExistsReason,
			message: "The launcher Pod is gone, and no stop of the VM was requested.",
		}
	}
	return nil
}

// ReasonLivenessProbeFailed is status.reason of a VMI whose guest was stopped because its livenessProbe failed.
const ReasonLivenessProbeFailed = "LivenessProbeFailed"

// stoppedByKubelet reports whether the kubelet stopped only the launcher's container, as it does when a liveness probe
// fails: the launcher was requested to stop, but its Pod was neither deleted nor, for example, evicted by the kubelet,
// which would be the reason in the Pod's status.
func stoppedByKubelet(pod *corev1.Pod) bool {
	outcome, ok := outcomeOf(pod)
	return ok && outcome.Stopped && pod.DeletionTimestamp == nil && pod.Status.Reason == ""
}

// disruptionOf returns a sentence with the reason why a Pod was removed if the cause was neither virt-controller nor a
// user, but a drain, the scheduler or the kubelet. Otherwise it returns "".
func disruptionOf(pod *corev1.Pod) string {
	c := podstate.Condition(pod, corev1.DisruptionTarget)
	switch {
	case c == nil || c.Status != corev1.ConditionTrue:
		return ""
	case c.Reason == "EvictionByEvictionAPI":
		return fmt.Sprintf("The launcher Pod was evicted from node %s, as a drain does.", pod.Spec.NodeName)
	default:
		return fmt.Sprintf("The launcher Pod was removed from node %s: %s (%s).", pod.Spec.NodeName, cleanMessage(c.Message),
			cleanReason(c.Reason))
	}
}

// asSentence adds the full stop to a message that has none.
func asSentence(message string) string { return strings.TrimRight(message, ". ") + "." }

// outcomeOf returns the outcome that the launcher wrote, or false if it wrote none, or the message is not a launcher's:
// the launcher was killed, or taken over by its guest.
func outcomeOf(pod *corev1.Pod) (launcherpod.Outcome, bool) {
	var outcome launcherpod.Outcome
	container := podstate.Compute(pod)
	if container == nil || container.State.Terminated == nil || len(container.State.Terminated.Message) > maxOutcomeBytes {
		return outcome, false
	}
	err := json.Unmarshal([]byte(strings.TrimSpace(container.State.Terminated.Message)), &outcome)
	return outcome, err == nil && outcomes[outcome.Reason]
}

// reasonUnexplained is the reason of an end for which neither the launcher nor the kubelet gives one. Container
// runtimes use it too.
const reasonUnexplained = "Error"

// finalStateOf derives the VMI's final state from a finished launcher Pod. The exit code decides the phase; the
// termination message explains it.
func finalStateOf(pod *corev1.Pod) finalState {
	container := podstate.Compute(pod)
	if container == nil || container.State.Terminated == nil {
		// The kubelet ended the Pod without the launcher's state: for example, it evicted the Pod or did not admit it.
		end := finalState{phase: v1.Failed, reason: cmp.Or(cleanReason(pod.Status.Reason), reasonUnexplained),
			message: cmp.Or(cleanMessage(pod.Status.Message),
				fmt.Sprintf("The launcher Pod ended as %s, and its status does not say why.",
					cmp.Or(pod.Status.Phase, corev1.PodUnknown)))}
		if pod.Status.Phase == corev1.PodSucceeded {
			end.phase = v1.Succeeded
		}
		return end
	}
	terminated := container.State.Terminated
	end := finalState{phase: v1.Failed, reason: cmp.Or(cleanReason(terminated.Reason), reasonUnexplained),
		message: explainExit(terminated)}
	if terminated.ExitCode == 0 {
		end.phase = v1.Succeeded
	}
	if outcome, ok := outcomeOf(pod); ok {
		end.reason, end.message = outcome.Reason, cleanMessage(outcome.Message)
	}
	return end
}

// explainExit describes how a launcher ended that left no outcome: for example, it was killed or does not know a flag.
// Its message is then the end of its log.
func explainExit(ended *corev1.ContainerStateTerminated) string {
	how := fmt.Sprintf("virt-launcher ended with exit code %d", ended.ExitCode)
	const signaled = 128 // Runtimes add the signal's number to it.
	switch {
	case ended.Signal != 0:
		how = fmt.Sprintf("virt-launcher was ended by signal %d", ended.Signal)
	case ended.ExitCode > signaled:
		how += fmt.Sprintf(" (signal %d)", ended.ExitCode-signaled)
	}
	message := strings.TrimSpace(ended.Message)
	if message == "" {
		return how + " and left no message."
	}
	if runes := []rune(message); len(runes) > maxMessageLength {
		message = string(runes[len(runes)-maxMessageLength:]) // The end of a log is the most useful part.
	}
	return how + ": " + cleanMessage(message)
}

// cleanReason removes from a reason what is not ASCII letters and digits, and caps it.
func cleanReason(s string) string {
	s = strings.Map(func(r rune) rune {
		if r <= unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return r
		}
		return -1
	}, s)
	const maxReasonLength = 128
	return s[:min(len(s), maxReasonLength)]
}

// cleanMessage replaces control characters in a message, which a terminal may show, and caps it.
func cleanMessage(s string) string {
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
