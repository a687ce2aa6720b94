// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/health"
)

// A VM counts as current only when its guest runs, is ready and is what the spec describes.
func TestHealth(t *testing.T) {
	instance := func(phase v1.VirtualMachineInstancePhase, ready corev1.ConditionStatus) *builder.VMI {
		return builder.MakeVMI("vm").Phase(phase).Condition(v1.VirtualMachineInstanceReady, ready, v1.GuestNotRunningReason,
			"")
	}
	deleted := ptr.To(metav1.NewTime(noon))
	for name, tc := range map[string]struct {
		strategy      v1.VirtualMachineRunStrategy
		vmi           *builder.VMI
		change        func(*Scope)
		kstatus, argo string
	}{
		"no instance yet":                  {v1.RunStrategyAlways, nil, nil, health.InProgress, health.Suspended},
		"an instance that is not reported": {v1.RunStrategyAlways, builder.MakeVMI("vm"), nil, health.InProgress, health.Progressing},
		"scheduling":                       {v1.RunStrategyAlways, instance(v1.Scheduling, corev1.ConditionFalse), nil, health.InProgress, health.Progressing},
		"assigned":                         {v1.RunStrategyAlways, instance(v1.Scheduled, corev1.ConditionFalse), nil, health.InProgress, health.Progressing},
		"running, and its probe fails":     {v1.RunStrategyAlways, instance(v1.Running, corev1.ConditionFalse), nil, health.InProgress, health.Progressing},
		"running and ready":                {v1.RunStrategyAlways, instance(v1.Running, corev1.ConditionTrue), nil, health.Current, health.Healthy},
		"migrating": {v1.RunStrategyAlways,
			instance(v1.Running, corev1.ConditionTrue).With(func(vmi *v1.VirtualMachineInstance) {
				vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{StartTimestamp: deleted}
			}), nil, health.Current, health.Healthy},
		"paused": {
			v1.RunStrategyAlways,
			instance(v1.Running, corev1.ConditionFalse).Condition(v1.VirtualMachineInstancePaused, corev1.ConditionTrue,
				v1.PausedByUserReason, ""),
			nil, health.InProgress, health.Suspended,
		},
		"the spec needs a restart": {v1.RunStrategyAlways, instance(v1.Running, corev1.ConditionTrue), func(s *Scope) {
			s.diff.restart = "a field changed"
		}, health.InProgress, health.Healthy},
		"cannot start": {v1.RunStrategyAlways, nil, func(s *Scope) { s.Failure = &kit.Failure{Reason: "FailedCreate", Message: "no"} },
			health.InProgress, health.Suspended},
		"the guest failed": {v1.RunStrategyRerunOnFailure, instance(v1.Failed, corev1.ConditionFalse), nil, health.InProgress, health.Progressing},
		"stopping": {v1.RunStrategyHalted,
			instance(v1.Running, corev1.ConditionFalse).With(func(vmi *v1.VirtualMachineInstance) {
				vmi.DeletionTimestamp = deleted
			}), nil, health.InProgress, health.Progressing},
		// kstatus waits for Ready, which is false as in KubeVirt.
		"halted":  {v1.RunStrategyHalted, nil, nil, health.InProgress, health.Suspended},
		"deleted": {v1.RunStrategyAlways, nil, func(s *Scope) { s.VM.DeletionTimestamp = deleted }, health.Terminating, health.Progressing},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Scope{Strategy: tc.strategy, Now: noon, diff: templateDiff{known: true},
				VM: builder.MakeVM("vm").With(func(vm *v1.VirtualMachine) {
					vm.Generation = 2
				}).Obj()}
			if tc.vmi != nil {
				s.VMI = tc.vmi.Annotation(v1.VirtualMachineGenerationAnnotation, "1").Obj()
			}
			if tc.change != nil {
				tc.change(s)
			}
			computeStatus(s)
			vm := s.VM.DeepCopy()
			vm.Status = s.Status
			if got := health.Kstatus(t, vm); got != tc.kstatus {
				t.Errorf("kstatus: got %s, want %s", got, tc.kstatus)
			}
			if got := health.ArgoVM(vm); got != tc.argo {
				t.Errorf("Argo CD: got %s, want %s", got, tc.argo)
			}
			// A change that was not reconciled yet.
			if vm.Generation++; vm.DeletionTimestamp == nil && health.Kstatus(t, vm) != health.InProgress {
				t.Error("the status of an earlier generation counts")
			}
		})
	}
}
