// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Reasons of the VM's condition Ready while the instance does not tell. KubeVirt's names.
const (
	reasonNoInstance  = "VMINotExists"
	reasonNoCondition = "VMIConditionMissing"
)

// ownConditions are those that the VM has for itself; all others are its instance's.
var ownConditions = []v1.VirtualMachineConditionType{
	v1.VirtualMachineReady, v1.VirtualMachineFailure, v1.VirtualMachineRestartRequired,
	v1.VirtualMachineManualRecoveryRequired,
}

// computeStatus brings the status to what is seen now.
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
	setFailure(s)
	setRestartRequired(s)
}

// setRunStrategy remembers the strategy once the VM has had an instance. A change to RerunOnFailure is remembered when the
// start that it means has happened: one that has to wait must not be forgotten.
func setRunStrategy(s *Scope) {
	before := s.VM.Status.RunStrategy
	waits := s.Strategy == v1.RunStrategyRerunOnFailure && before != s.Strategy && s.VMI == nil
	if (before != "" || s.Status.Created) && !waits {
		s.Status.RunStrategy = s.Strategy
	}
}

// setGenerations tells which generation of the spec is in effect, and which one should be. They differ only while an
// instance lives that its template has left behind: what waits for a restart is not in effect.
func setGenerations(s *Scope) {
	s.Status.DesiredGeneration = s.VM.Generation
	s.Status.ObservedGeneration = s.VM.Generation
	if alive(s) && s.VMI.DeletionTimestamp == nil && !s.step.inStep() {
		if made := madeFrom(s.VMI); made != 0 {
			s.Status.ObservedGeneration = made
		}
	}
}

// setRestartRequired says what waits for the next start. An instance of which nobody knows what it was made from leaves the
// condition as it is; one that is gone needs no restart.
func setRestartRequired(s *Scope) {
	if alive(s) && s.VMI.DeletionTimestamp == nil && !s.step.known {
		return
	}
	if s.step.restart == "" {
		removeCondition(&s.Status, v1.VirtualMachineRestartRequired)
		return
	}
	setCondition(&s.Status, v1.VirtualMachineCondition{
		Type: v1.VirtualMachineRestartRequired, Status: corev1.ConditionTrue, Message: s.step.restart,
		LastTransitionTime: metav1.NewTime(s.Now),
	})
}

// mirrorConditions shows the instance's conditions on the VM and removes those that the instance no longer has.
func mirrorConditions(s *Scope) {
	seen := map[v1.VirtualMachineConditionType]bool{}
	if s.VMI != nil {
		for _, condition := range s.VMI.Status.Conditions {
			kind := v1.VirtualMachineConditionType(condition.Type)
			if slices.Contains(ownConditions, kind) {
				continue
			}
			seen[kind] = true
			setCondition(&s.Status, v1.VirtualMachineCondition{
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
	setCondition(&s.Status, want)
}

func setFailure(s *Scope) {
	if s.Failure == nil {
		removeCondition(&s.Status, v1.VirtualMachineFailure)
		return
	}
	setCondition(&s.Status, v1.VirtualMachineCondition{
		Type: v1.VirtualMachineFailure, Status: corev1.ConditionTrue, Reason: s.Failure.Reason,
		Message: s.Failure.Message, LastTransitionTime: metav1.NewTime(s.Now),
	})
}

func findCondition(status *v1.VirtualMachineStatus, kind v1.VirtualMachineConditionType) *v1.VirtualMachineCondition {
	for i := range status.Conditions {
		if status.Conditions[i].Type == kind {
			return &status.Conditions[i]
		}
	}
	return nil
}

func removeCondition(status *v1.VirtualMachineStatus, kind v1.VirtualMachineConditionType) {
	status.Conditions = slices.DeleteFunc(status.Conditions, func(c v1.VirtualMachineCondition) bool { return c.Type == kind })
}

// setCondition keeps the time of a condition whose status stays.
func setCondition(status *v1.VirtualMachineStatus, want v1.VirtualMachineCondition) {
	known := findCondition(status, want.Type)
	if known == nil {
		status.Conditions = append(status.Conditions, want)
		return
	}
	if known.Status == want.Status {
		want.LastTransitionTime = known.LastTransitionTime
		want.LastProbeTime = known.LastProbeTime
	}
	*known = want
}

// worthAWrite says that the status changed. While the VM starts, another reason for not being ready yet is not worth a
// write of its own: the printable status tells as much.
func worthAWrite(s *Scope) bool {
	after := s.Status.DeepCopy()
	before, now := findCondition(&s.VM.Status, v1.VirtualMachineReady), findCondition(after, v1.VirtualMachineReady)
	if s.Status.PrintableStatus == v1.VirtualMachineStatusStarting && before != nil && now != nil && before.Status == now.Status {
		*now = *before
	}
	return !equality.Semantic.DeepEqual(&s.VM.Status, after)
}

// writeStatus writes the status if it changed.
func writeStatus(ctx context.Context, s *Scope) error {
	if !worthAWrite(s) {
		return nil
	}
	changed := s.VM.DeepCopy()
	changed.Status = s.Status
	lock := client.MergeFromWithOptions(s.VM, client.MergeFromWithOptimisticLock{})
	if err := s.Client.Status().Patch(ctx, changed, lock); err != nil {
		return fmt.Errorf("patch status of VirtualMachine %s: %w", client.ObjectKeyFromObject(s.VM), err)
	}
	// Only now: a write that is refused is repeated, and so are the events that follow from it.
	before := s.VM.Status
	s.VM = changed
	s.reportFailure(&before)
	if s.Status.PrintableStatus == v1.VirtualMachineStatusDataVolumeError && before.PrintableStatus != s.Status.PrintableStatus {
		s.tellFailedImports()
	}
	return nil
}
