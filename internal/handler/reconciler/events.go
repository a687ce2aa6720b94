// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/eviction"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// messageShuttingDown is the message of the condition Ready once the guest was asked to shut down. The event ShuttingDown follows
// from it, so it must not be taken back while the Pod is there.
const messageShuttingDown = "The launcher Pod is being deleted and the guest was asked to shut down"

// shutdownSignaled says that the guest was asked to shut down, by this agent or, as the status says, by an earlier one.
func (s *scope) shutdownSignaled() bool {
	return !s.memory.lastShutdown.IsZero() || isShuttingDown(&s.vmi.Status)
}

func isShuttingDown(status *v1.VirtualMachineInstanceStatus) bool {
	c := vmistatus.FindCondition(status, v1.VirtualMachineInstanceReady)
	return c != nil && c.Status == corev1.ConditionFalse && c.Message == messageShuttingDown
}

// transitions are the events that follow from a change of the status, in the order in which things happen to a guest. Nothing else
// remembers that they were sent, so neither a write that is refused nor a restart of the agent loses one or sends it again.
// Names and words are KubeVirt's. The end of a guest is virt-controller's to report.
func transitions(before, after *v1.VirtualMachineInstanceStatus) []pendingEvent {
	var events []pendingEvent
	add := func(kind, reason, message string) {
		events = append(events, pendingEvent{kind: kind, reason: reason, message: message})
	}
	if before.Phase != v1.Running && after.Phase == v1.Running {
		add(corev1.EventTypeNormal, v1.Started.String(), "VirtualMachineInstance started.")
	}
	credentials := vmistatus.FindCondition(after, v1.VirtualMachineInstanceAccessCredentialsSynchronized)
	known := vmistatus.FindCondition(before, v1.VirtualMachineInstanceAccessCredentialsSynchronized)
	switch {
	case credentials == nil, known != nil && known.Status == credentials.Status && known.Message == credentials.Message:
	case credentials.Status == corev1.ConditionTrue:
		add(corev1.EventTypeNormal, reasonCredentialsSynced, "Access credentials sync successful.")
	default:
		add(corev1.EventTypeWarning, reasonCredentialsFailed, "Access credentials sync failed: "+credentials.Message)
	}
	if failure := failureOf(after); failure != "" && failure != failureOf(before) {
		add(corev1.EventTypeWarning, v1.SyncFailed.String(), failure)
	}
	if isShuttingDown(after) && !isShuttingDown(before) {
		add(corev1.EventTypeNormal, v1.ShuttingDown.String(), "Signaled Graceful Shutdown")
	}
	return events
}

// noteStuck warns, when that comes to be known, of a guest that cannot migrate though it is to do so when somebody evicts its Pod.
// KubeVirt's words.
func (s *scope) noteStuck() {
	c := vmistatus.FindCondition(&s.vmi.Status, v1.VirtualMachineInstanceIsMigratable)
	known := vmistatus.FindCondition(&s.before.Status, v1.VirtualMachineInstanceIsMigratable)
	if c == nil || c.Status != corev1.ConditionFalse || known != nil && known.Status == c.Status && known.Message == c.Message ||
		eviction.StrategyOf(s.vmi, s.config.EvictionStrategy) != v1.EvictionStrategyLiveMigrate {
		return
	}
	s.event(corev1.EventTypeWarning, v1.Migrated.String(), "EvictionStrategy is set but vmi is not migratable; "+c.Message)
}

// failureOf is what a status says about why the spec cannot be followed.
func failureOf(status *v1.VirtualMachineInstanceStatus) string {
	c := vmistatus.FindCondition(status, v1.VirtualMachineInstanceSynchronized)
	if c == nil || c.Status != corev1.ConditionFalse {
		return ""
	}
	return c.Message
}
