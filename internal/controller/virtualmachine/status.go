// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Reasons of the VM's condition Ready if the instance has no such condition. KubeVirt's names.
const (
	reasonNoInstance  = "VMINotExists"
	reasonNoCondition = "VMIConditionMissing"
)

// ownConditions are the VM's own conditions; all others are copied from its instance.
var ownConditions = []v1.VirtualMachineConditionType{
	v1.VirtualMachineReady, v1.VirtualMachineFailure, v1.VirtualMachineRestartRequired,
	v1.VirtualMachineManualRecoveryRequired,
}

// computeStatus computes the status from what this reconciliation observed.
func computeStatus(s *Scope) {
	status := &s.Status
	status.Created = s.VMI != nil
	ready := false
	if s.VMI != nil {
		ready = vmistatus.IsConditionTrue(&s.VMI.Status, v1.VirtualMachineInstanceReady)
	}
	status.Ready = ready
	status.PrintableStatus = printableStatus(s)
	setRunStrategy(s)
	setGenerations(s)
	mirrorConditions(s)
	setReady(s)
	kit.SetFailure(&s.Status.Conditions, v1.VirtualMachineFailure, s.Failure, s.Now)
	setRestartRequired(s)
}

// setRunStrategy records the strategy once the VM has had an instance. A change to RerunOnFailure is recorded only
// after the start that it causes, so that a delayed start is not lost.
func setRunStrategy(s *Scope) {
	before := s.VM.Status.RunStrategy
	waits := s.Strategy == v1.RunStrategyRerunOnFailure && before != s.Strategy && s.VMI == nil
	if (before != "" || s.Status.Created) && !waits {
		s.Status.RunStrategy = s.Strategy
	}
}

// setGenerations sets which generation of the spec is in effect, and which one should be. They differ only while an
// instance runs that is not up to date with its template.
func setGenerations(s *Scope) {
	s.Status.DesiredGeneration = s.VM.Generation
	s.Status.ObservedGeneration = s.VM.Generation
	if alive(s) && s.VMI.DeletionTimestamp == nil && !s.diff.upToDate() {
		if made := madeFrom(s.VMI); made != 0 {
			s.Status.ObservedGeneration = made
		}
	}
}

// setRestartRequired sets or removes the condition RestartRequired. It is not changed while the template of the
// instance is unknown, and removed when there is no instance.
func setRestartRequired(s *Scope) {
	if alive(s) && s.VMI.DeletionTimestamp == nil && !s.diff.known {
		return
	}
	if s.diff.restart == "" {
		conditions.Remove(&s.Status.Conditions, v1.VirtualMachineRestartRequired)
		return
	}
	conditions.Set(&s.Status.Conditions, v1.VirtualMachineCondition{
		Type: v1.VirtualMachineRestartRequired, Status: corev1.ConditionTrue, Message: s.diff.restart,
		LastTransitionTime: metav1.NewTime(s.Now),
	})
}

// mirrorConditions copies the instance's conditions to the VM and removes those that the instance no longer has.
func mirrorConditions(s *Scope) {
	seen := map[v1.VirtualMachineConditionType]bool{}
	if s.VMI != nil {
		for _, condition := range s.VMI.Status.Conditions {
			kind := v1.VirtualMachineConditionType(condition.Type)
			if slices.Contains(ownConditions, kind) {
				continue
			}
			seen[kind] = true
			conditions.Set(&s.Status.Conditions, v1.VirtualMachineCondition{
				Type: kind, Status: condition.Status, Reason: condition.Reason, Message: condition.Message,
				LastTransitionTime: condition.LastTransitionTime,
			})
		}
	}
	s.Status.Conditions = slices.DeleteFunc(s.Status.Conditions, func(c v1.VirtualMachineCondition) bool {
		return !seen[c.Type] && !slices.Contains(ownConditions, c.Type)
	})
}

// setReady copies the instance's condition.
func setReady(s *Scope) {
	want := v1.VirtualMachineCondition{
		Type: v1.VirtualMachineReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(s.Now),
	}
	if s.VMI == nil {
		want.Reason, want.Message = reasonNoInstance, "VMI does not exist"
	} else {
		condition := vmistatus.FindCondition(&s.VMI.Status, v1.VirtualMachineInstanceReady)
		if condition == nil {
			want.Reason, want.Message = reasonNoCondition, "VMI is missing the Ready condition"
		} else {
			want.Status, want.Reason, want.Message = condition.Status, condition.Reason, condition.Message
		}
	}
	conditions.Set(&s.Status.Conditions, want)
}

// needsWrite reports whether the status changed. While the VM starts, another reason of Ready=False alone is not
// written: the printable status is Starting all the same.
func needsWrite(s *Scope) bool {
	after := s.Status.DeepCopy()
	before, now := conditions.Find(s.VM.Status.Conditions, v1.VirtualMachineReady),
		conditions.Find(after.Conditions, v1.VirtualMachineReady)
	if s.Status.PrintableStatus == v1.VirtualMachineStatusStarting && before != nil && now != nil &&
		before.Status == now.Status {
		*now = *before
	}
	return !equality.Semantic.DeepEqual(&s.VM.Status, after)
}

// writeStatus writes the status if it changed.
func writeStatus(ctx context.Context, s *Scope) error {
	if !needsWrite(s) {
		return nil
	}
	change := func(vm *v1.VirtualMachine) { vm.Status = s.Status }
	return kit.WriteStatus(ctx, s.Client, &s.VM, change, func(before *v1.VirtualMachine) {
		kit.RecordFailure(s.Recorder, s.VM, before.Status.Conditions, v1.VirtualMachineFailure, s.Failure)
		const failed = v1.VirtualMachineStatusDataVolumeError
		if s.Status.PrintableStatus == failed && before.Status.PrintableStatus != failed {
			s.recordFailedImports()
		}
	})
}
