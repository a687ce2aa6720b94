// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestPrintableStatus(t *testing.T) {
	deleted := func(vmi *v1.VirtualMachineInstance) { vmi.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }
	vmi := func() *builder.VMI { return builder.MakeVMI("vm") }
	failing := &v1.VirtualMachineStartFailure{ConsecutiveFailCount: 1, RetryAfterTimestamp: ptr.To(metav1.NewTime(noon))}
	for name, tc := range map[string]struct {
		vmi     *builder.VMI
		failure *v1.VirtualMachineStartFailure
		want    v1.VirtualMachinePrintableStatus
	}{
		"no instance":                      {nil, nil, v1.VirtualMachineStatusStopped},
		"ended":                            {vmi().Phase(v1.Failed), nil, v1.VirtualMachineStatusStopped},
		"no instance after a failed start": {nil, failing, v1.VirtualMachineStatusCrashLoopBackOff},
		"started again":                    {vmi(), failing, v1.VirtualMachineStatusStarting},
		"no phase yet":                     {vmi(), nil, v1.VirtualMachineStatusStarting},
		"assigned":                         {vmi().Phase(v1.Scheduled), nil, v1.VirtualMachineStatusStarting},
		"running":                          {vmi().Phase(v1.Running), nil, v1.VirtualMachineStatusRunning},
		"unknown phase":                    {vmi().Phase(v1.Unknown), nil, v1.VirtualMachineStatusUnknown},
		"stopping takes precedence":        {vmi().Phase(v1.Running).With(deleted), nil, v1.VirtualMachineStatusStopping},
		"deleted and ended is stopped":     {vmi().Phase(v1.Succeeded).With(deleted), nil, v1.VirtualMachineStatusStopped},
		"paused takes precedence over running": {
			vmi().Phase(v1.Running).Condition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, "", ""), nil,
			v1.VirtualMachineStatusPaused,
		},
		"migrating takes precedence over paused": {
			vmi().Phase(v1.Running).Condition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue, "", "").
				With(func(vmi *v1.VirtualMachineInstance) {
					vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{StartTimestamp: ptr.To(metav1.NewTime(noon))}
				}), nil, v1.VirtualMachineStatusMigrating,
		},
		"a missing claim takes precedence over no node": {
			vmi().Condition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, "FailedPvcNotFound", "").
				Condition(v1.VirtualMachineInstancePodScheduled, corev1.ConditionFalse, "Unschedulable", ""), nil,
			v1.VirtualMachineStatusPvcNotFound,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Scope{VM: builder.MakeVM("vm").Obj(), Strategy: v1.RunStrategyAlways, Now: noon}
			s.Status.StartFailure = tc.failure
			if tc.vmi != nil {
				s.VMI = tc.vmi.Obj()
			}
			if got := printableStatus(s); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			s.VM.DeletionTimestamp = ptr.To(metav1.NewTime(noon))
			if got := printableStatus(s); got != v1.VirtualMachineStatusTerminating {
				t.Errorf("status of a deleted VM: got %s", got)
			}
		})
	}
}

func TestStartDelay(t *testing.T) {
	for count, least := range map[int]time.Duration{1: 10 * time.Second, 2: 40 * time.Second, 3: 90 * time.Second,
		100: backoffCap} {
		for _, uid := range []types.UID{"a", "b", "c"} {
			delay := startDelay(count, uid)
			if delay < least || delay > least+least/2 || delay > backoffCap {
				t.Errorf("delay after %d failures of %s: got %s, want at least %s and at most half more", count, uid, delay, least)
			}
		}
	}
}

func TestCountStartFailure(t *testing.T) {
	once := &v1.VirtualMachineStartFailure{ConsecutiveFailCount: 1, LastFailedVMIUID: "old"}
	vmi := func() *builder.VMI { return builder.MakeVMI("vm").UID("new") }
	for name, tc := range map[string]struct {
		strategy v1.VirtualMachineRunStrategy
		vmi      *builder.VMI
		want     int
	}{
		"no instance":                  {v1.RunStrategyAlways, nil, 1},
		"starting":                     {v1.RunStrategyAlways, vmi().Phase(v1.Scheduling), 1},
		"failed":                       {v1.RunStrategyAlways, vmi().Phase(v1.Failed), 2},
		"failed, counted already":      {v1.RunStrategyAlways, vmi().UID("old").Phase(v1.Failed), 1},
		"failed after it ran":          {v1.RunStrategyAlways, vmi().Phase(v1.Running).Phase(v1.Failed), 0},
		"succeeded without having run": {v1.RunStrategyAlways, vmi().Phase(v1.Succeeded), 2},
		"stopped before it ran": {v1.RunStrategyAlways, vmi().Phase(v1.Succeeded).With(func(vmi *v1.VirtualMachineInstance) {
			vmi.DeletionTimestamp = ptr.To(metav1.NewTime(noon))
		}), 1},
		"halted": {v1.RunStrategyHalted, vmi().Phase(v1.Failed), 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Scope{VM: builder.MakeVM("vm").Obj(), Strategy: tc.strategy, Now: noon}
			s.Status.StartFailure = once.DeepCopy()
			if tc.vmi != nil {
				s.VMI = tc.vmi.Obj()
			}
			got := 0
			if failure := countStartFailure(s); failure != nil {
				got = failure.ConsecutiveFailCount
			}
			if got != tc.want {
				t.Errorf("counted %d, want %d", got, tc.want)
			}
		})
	}
}
