// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestTransitions(t *testing.T) {
	status := func(phase v1.VirtualMachineInstancePhase,
		conditions ...v1.VirtualMachineInstanceCondition) *v1.VirtualMachineInstanceStatus {
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
		{"a warning that is removed", status(v1.Running, failed), status(v1.Running), nil},
		{"credentials", status(v1.Running), status(v1.Running, synced), []string{"AccessCredentialsSyncSuccess"}},
		{"credentials that fail", status(v1.Running, synced), status(v1.Running, unsynced), []string{"AccessCredentialsSyncFailed"}},
		{"a Pod that is deleted", status(v1.Running), status(v1.Running, terminating), nil},
		{"a shutdown", status(v1.Running), status(v1.Running, shuttingDown), []string{"ShuttingDown"}},
		{"a shutdown after the deletion of the Pod", status(v1.Running, terminating), status(v1.Running, shuttingDown), []string{"ShuttingDown"}},
		{"a shutdown that continues", status(v1.Running, shuttingDown), status(v1.Running, shuttingDown), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, e := range transitions(tc.before, tc.after) {
				got = append(got, e.Reason)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestNotMigratableEvent(t *testing.T) {
	condition := func(status corev1.ConditionStatus, message string) []v1.VirtualMachineInstanceCondition {
		return []v1.VirtualMachineInstanceCondition{{Type: v1.VirtualMachineInstanceIsMigratable, Status: status,
			Message: message}}
	}
	stuck, tied := condition(corev1.ConditionFalse, "a disk"), condition(corev1.ConditionFalse, "a disk; a device")
	const warning = "EvictionStrategy is set but vmi is not migratable; "
	for _, tc := range []struct {
		name          string
		own           *v1.EvictionStrategy
		cluster       v1.EvictionStrategy
		before, after []v1.VirtualMachineInstanceCondition
		want          string
	}{
		{"its own strategy", ptr.To(v1.EvictionStrategyLiveMigrate), "", nil, stuck, warning + "a disk"},
		{"the cluster's strategy", nil, v1.EvictionStrategyLiveMigrate, nil, stuck, warning + "a disk"},
		{"a guest that could migrate", nil, v1.EvictionStrategyLiveMigrate, condition(corev1.ConditionTrue, ""), stuck, warning + "a disk"},
		{"another obstacle", nil, v1.EvictionStrategyLiveMigrate, stuck, tied, warning + "a disk; a device"},
		{"known already", nil, v1.EvictionStrategyLiveMigrate, stuck, stuck, ""},
		{"a guest that migrates", nil, v1.EvictionStrategyLiveMigrate, stuck, condition(corev1.ConditionTrue, ""), ""},
		{"if possible", ptr.To(v1.EvictionStrategyLiveMigrateIfPossible), v1.EvictionStrategyLiveMigrate, nil, stuck, ""},
		{"no strategy", nil, v1.EvictionStrategyNone, nil, stuck, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := scopeOf()
			s.VMI.Spec.EvictionStrategy, s.Config.EvictionStrategy = tc.own, tc.cluster
			s.Before.Status.Conditions, s.VMI.Status.Conditions = tc.before, tc.after
			s.addNotMigratableEvent()
			var got string
			for _, e := range s.Events {
				got += e.Type + " " + e.Reason + " " + e.Message
			}
			want := ""
			if tc.want != "" {
				want = "Warning Migrated " + tc.want
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
