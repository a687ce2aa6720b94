// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestTransitions(t *testing.T) {
	status := func(phase v1.VirtualMachineInstancePhase, conditions ...v1.VirtualMachineInstanceCondition) *v1.VirtualMachineInstanceStatus {
		return &v1.VirtualMachineInstanceStatus{Phase: phase, Conditions: conditions}
	}
	condition := func(
		kind v1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus, message string,
	) v1.VirtualMachineInstanceCondition {
		return v1.VirtualMachineInstanceCondition{Type: kind, Status: status, Message: message}
	}
	synced := condition(v1.VirtualMachineInstanceAccessCredentialsSynchronized, corev1.ConditionTrue, "")
	unsynced := condition(v1.VirtualMachineInstanceAccessCredentialsSynchronized, corev1.ConditionFalse, "no such user")
	failed := condition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "no such disk")
	terminating := condition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, "The launcher Pod is being deleted")
	shuttingDown := condition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, messageShuttingDown)
	for _, tc := range []struct {
		name          string
		before, after *v1.VirtualMachineInstanceStatus
		want          []string
	}{
		{"nothing", status(v1.Running, synced), status(v1.Running, synced), nil},
		{"a start", status(v1.Scheduled), status(v1.Running), []string{"Started"}},
		{"a start that a warning follows", status(v1.Scheduled), status(v1.Running, failed), []string{"Started", "SyncFailed"}},
		{"a warning", status(v1.Running), status(v1.Running, failed), []string{"SyncFailed"}},
		{"a warning that stays", status(v1.Running, failed), status(v1.Running, failed), nil},
		{"a warning that is taken back", status(v1.Running, failed), status(v1.Running), nil},
		{"credentials", status(v1.Running), status(v1.Running, synced), []string{"AccessCredentialsSyncSuccess"}},
		{"credentials that fail", status(v1.Running, synced), status(v1.Running, unsynced), []string{"AccessCredentialsSyncFailed"}},
		{"a Pod that is deleted", status(v1.Running), status(v1.Running, terminating), nil},
		{"a shutdown", status(v1.Running), status(v1.Running, shuttingDown), []string{"ShuttingDown"}},
		{"a shutdown that was late", status(v1.Running, terminating), status(v1.Running, shuttingDown), []string{"ShuttingDown"}},
		{"a shutdown that goes on", status(v1.Running, shuttingDown), status(v1.Running, shuttingDown), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, e := range transitions(tc.before, tc.after) {
				got = append(got, e.reason)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
