// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/devices"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// messageShuttingDown is the message of the condition Ready once the guest was requested to shut down. The event
// ShuttingDown is derived from it, so it must not be removed as long as the Pod exists.
const messageShuttingDown = "The launcher Pod is being deleted and the guest was requested to shut down"

// shutdownSignaled reports whether the guest was requested to shut down, by this process or, according to the status,
// by an earlier one.
func (s *scope) shutdownSignaled() bool {
	return s.cache.shutdown.made() || isShuttingDown(&s.VMI.Status)
}

func isShuttingDown(status *v1.VirtualMachineInstanceStatus) bool {
	c := vmistatus.FindCondition(status, v1.VirtualMachineInstanceReady)
	return c != nil && c.Status == corev1.ConditionFalse && c.Message == messageShuttingDown
}

// transitions returns the events that follow from a change of the status, in the order in which things happen to a
// guest. They depend on nothing else, so neither a rejected write nor a restart of the agent loses or repeats one.
// Reasons and messages are KubeVirt's. virt-controller records the events about the end of a guest.
func transitions(before, after *v1.VirtualMachineInstanceStatus) []phase.Event {
	var events []phase.Event
	add := func(kind, reason, message string) {
		events = append(events, phase.Event{Type: kind, Reason: reason, Message: message})
	}
	if before.Phase != v1.Running && after.Phase == v1.Running {
		add(corev1.EventTypeNormal, v1.Started.String(), "VirtualMachineInstance started.")
	}
	events = append(events, devices.Events(before, after)...)
	credentials := vmistatus.FindCondition(after, v1.VirtualMachineInstanceAccessCredentialsSynchronized)
	known := vmistatus.FindCondition(before, v1.VirtualMachineInstanceAccessCredentialsSynchronized)
	switch {
	case credentials == nil, known != nil && known.Status == credentials.Status && known.Message == credentials.Message:
	case credentials.Status == corev1.ConditionTrue:
		add(corev1.EventTypeNormal, reasonCredentialsSynced, "Access credentials sync successful.")
	default:
		add(corev1.EventTypeWarning, reasonCredentialsFailed, "Access credentials sync failed: "+credentials.Message)
	}
	if c := unrequestedPause(after); c != nil {
		if known := unrequestedPause(before); known == nil || known.Reason != c.Reason {
			add(corev1.EventTypeWarning, c.Reason, c.Message)
		}
	}
	if failure := failureOf(after); failure != "" && failure != failureOf(before) {
		add(corev1.EventTypeWarning, v1.SyncFailed.String(), failure)
	}
	if isShuttingDown(after) && !isShuttingDown(before) {
		add(corev1.EventTypeNormal, v1.ShuttingDown.String(), "Signaled Graceful Shutdown")
	}
	return events
}

// addNotMigratableEvent adds a warning when a guest turns out not to be migratable although its eviction strategy is to
// migrate it. The message is KubeVirt's.
func (s *scope) addNotMigratableEvent() {
	c := vmistatus.FindCondition(&s.VMI.Status, v1.VirtualMachineInstanceIsMigratable)
	known := vmistatus.FindCondition(&s.Before.Status, v1.VirtualMachineInstanceIsMigratable)
	if c == nil || c.Status != corev1.ConditionFalse ||
		known != nil && known.Status == c.Status && known.Message == c.Message ||
		eviction.StrategyOf(s.VMI, s.Config.EvictionStrategy) != v1.EvictionStrategyLiveMigrate {
		return
	}
	s.Event(corev1.EventTypeWarning, v1.Migrated.String(), "EvictionStrategy is set but vmi is not migratable; "+c.Message)
}

// failureOf returns the message of the condition Synchronized if it is False.
func failureOf(status *v1.VirtualMachineInstanceStatus) string {
	c := vmistatus.FindCondition(status, v1.VirtualMachineInstanceSynchronized)
	if c == nil || c.Status != corev1.ConditionFalse {
		return ""
	}
	return c.Message
}
