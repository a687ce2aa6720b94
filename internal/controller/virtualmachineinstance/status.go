// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// patience is how old a launcher Pod gets before Scheduling is worth a write of its own. A quick start goes from
// Pending to Scheduled at once.
const patience = 3 * time.Second

// writeStatus computes the status from what the phases found, writes it if it changed, and then tells what happened.
func writeStatus(ctx context.Context, s *Scope) error {
	after := s.VMI.DeepCopy()
	ComputeStatus(s, &after.Status)
	changed, err := vmistatus.Patch(ctx, s.Client, vmistatus.Controller, s.VMI, after)
	if err != nil {
		return err
	}
	if !changed {
		return nil
	}
	before := s.VMI
	s.VMI = after
	s.tell(&before.Status)
	return nil
}

// tell sends the events that belong to a status that was just written.
func (s *Scope) tell(before *v1.VirtualMachineInstanceStatus) {
	after := &s.VMI.Status
	if s.HandOver && before.Phase != v1.Scheduled {
		s.event(corev1.EventTypeNormal, ReasonSuccessfulHandOver, actionHandOver,
			"Pod ownership transferred to the node %s", after.NodeName)
	}
	if s.End != nil && before.Phase != s.End.Phase {
		s.tellEnd(before)
	}
	if s.End == nil && after.Reason == ReasonNodeUnresponsive && before.Reason != after.Reason {
		_, message := explainSilence(s)
		s.event(corev1.EventTypeWarning, ReasonNodeUnresponsive, actionWait, "%s", message)
	}
	problem := vmistatus.FindCondition(after, v1.VirtualMachineInstanceSynchronized)
	known := vmistatus.FindCondition(before, v1.VirtualMachineInstanceSynchronized)
	if s.Problem != nil && problem != nil && (known == nil || *known != *problem) {
		s.event(corev1.EventTypeWarning, problem.Reason, actionWait, "%s", problem.Message)
	}
}

// tellEnd sends the events at the end, in KubeVirt's order and with its words. Those about a guest are there its agent's, and here
// virt-controller's, who learns the end: they name the agent as their source.
func (s *Scope) tellEnd(before *v1.VirtualMachineInstanceStatus) {
	kind, ended := corev1.EventTypeNormal, "The VirtualMachineInstance was shut down."
	if s.End.Phase == v1.Failed {
		kind, ended = corev1.EventTypeWarning, "The VirtualMachineInstance crashed."
	}
	if s.End.Reason == ReasonFailedGuarantee || s.End.Reason == ReasonImportFailed {
		s.event(kind, s.End.Reason, actionEnd, "%s", s.End.Message)
	}
	tell := s.event
	if vmistatus.StageOf(before.Phase) == vmistatus.Live {
		tell = s.agentEvent
	}
	if s.End.Reason == launcherpod.OutcomeDestroyed {
		tell(corev1.EventTypeNormal, v1.Deleted.String(), actionEnd, "VirtualMachineInstance stopping")
	}
	if s.Pod != nil && vmistatus.StageOf(before.Phase) == vmistatus.Live {
		tell(corev1.EventTypeNormal, v1.Deleted.String(), actionEnd, "Signaled Deletion")
	}
	tell(kind, v1.Stopped.String(), actionEnd, "%s %s: %s", ended, s.End.Reason, s.End.Message)
}

// ComputeStatus brings a status to what the scope has found out. It is pure but for the scope's RequeueAfter.
func ComputeStatus(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	switch {
	case vmistatus.StageOf(status.Phase) == vmistatus.Ended:
	case s.End != nil:
		setEnd(s, status)
	case s.HandOver:
		setHandedOver(s, status)
	case vmistatus.StageOf(status.Phase) == vmistatus.Live:
		setLive(s, status)
	case vmistatus.StageOf(status.Phase) == vmistatus.Preparing && !s.deleting():
		setPreparing(s, status)
	}
}

func setEnd(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	vmistatus.SetPhase(status, s.End.Phase, metav1.NewTime(s.Now))
	status.Reason = s.End.Reason
	vmistatus.RemoveCondition(status, v1.VirtualMachineInstancePodScheduled)
	vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceNodeUnresponsive)
	reason := v1.GuestNotRunningReason
	if s.Pod == nil {
		reason = v1.PodNotExistsReason
	}
	setNotReady(s, status, reason, s.End.Message)
}

func setHandedOver(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	stampPassed(s, status)
	vmistatus.SetPhase(status, v1.Scheduled, metav1.NewTime(s.Now))
	status.NodeName = s.Pod.Spec.NodeName
	status.ActivePods = map[types.UID]string{s.Pod.UID: s.Pod.Spec.NodeName}
	status.LauncherContainerImageVersion = podspec.LauncherImage(s.Pod)
	status.RuntimeUser = launcherpod.QEMUUser
	setTransport(s, status)
	setRevision(s, status)
	if s.Pod.Status.QOSClass != "" {
		status.QOSClass = ptr.To(s.Pod.Status.QOSClass)
	}
	status.VolumeStatus = volumeStatus(s)
	setImports(s, status)
	setProvisioning(s, status)
	status.VSOCKCID = s.VSOCK
	vmistatus.RemoveCondition(status, v1.VirtualMachineInstancePodScheduled)
	vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceSynchronized)
	setNotReady(s, status, v1.GuestNotRunningReason, "The launcher Pod runs, the guest is about to start.")
}

// setTransport says how the guest migrates, which its Pod has in an annotation.
func setTransport(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	if s.Pod == nil {
		return
	}
	if _, unix := s.Pod.Annotations[v1.MigrationTransportUnixAnnotation]; unix {
		status.MigrationTransport = v1.MigrationTransportUnix
	}
}

// setPreparing writes only if there is something to tell: a problem, or a Pod that takes its time.
func setPreparing(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	if s.Problem == nil && s.Pod != nil {
		s.Problem = podProblem(s.Pod)
	}
	told := len(status.Conditions) > 0 || status.Phase == v1.Scheduling || s.importing || s.unconsumed
	if s.Problem == nil && !told {
		if s.Pod == nil {
			return
		}
		if wait := s.Pod.CreationTimestamp.Add(patience).Sub(s.Now); wait > 0 {
			s.RequeueAfter = wait
			return
		}
	}
	switch {
	case s.refused():
		setRefused(s, status)
	case s.Pod != nil:
		stampPassed(s, status)
		status.Phase = v1.Scheduling
		setNotReady(s, status, v1.GuestNotRunningReason, "The launcher Pod does not run yet.")
	default:
		setNotReady(s, status, v1.PodNotExistsReason, "There is no launcher Pod yet.")
	}
	setRevision(s, status)
	setImports(s, status)
	setProvisioning(s, status)
	setProblem(s, status)
}

// setRevision names the ControllerRevision with the VM's spec that the VMI was made from. The VM's reconciler gives the
// generation in an annotation, and changes it only after the status has the name.
func setRevision(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	owner := vmistatus.MachineOf(s.VMI)
	if status.VirtualMachineRevisionName != "" || owner == nil {
		return
	}
	generation, err := strconv.ParseInt(s.VMI.Annotations[v1.VirtualMachineGenerationAnnotation], 10, 64)
	if err != nil {
		return // The VM adopted it: nothing was recorded.
	}
	status.VirtualMachineRevisionName = v1.StartRevisionName(owner.UID, generation)
}

func setProblem(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	now := metav1.NewTime(s.Now)
	if s.Problem == nil {
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstancePodScheduled)
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceSynchronized)
		return
	}
	if s.Problem.Unschedulable {
		reason := corev1.PodReasonUnschedulable
		if s.Problem.Scheduler {
			reason = s.Problem.Reason
		}
		vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
			Type: v1.VirtualMachineInstancePodScheduled, Status: corev1.ConditionFalse,
			Reason: reason, Message: s.Problem.Message,
		}, now)
	} else {
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstancePodScheduled)
	}
	if s.Problem.Scheduler {
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceSynchronized)
		return
	}
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse,
		Reason: s.Problem.Reason, Message: s.Problem.Message,
	}, now)
}

// podProblem is why a Pod does not run, if the scheduler or the kubelet say so.
func podProblem(pod *corev1.Pod) *Problem {
	scheduled := podCondition(pod, corev1.PodScheduled)
	if scheduled != nil && scheduled.Status == corev1.ConditionFalse {
		return &Problem{Reason: scheduled.Reason, Message: scheduled.Message, Unschedulable: true, Scheduler: true}
	}
	container := compute(pod)
	if container == nil || container.State.Waiting == nil {
		return nil
	}
	waiting := container.State.Waiting
	switch waiting.Reason {
	case "", "ContainerCreating", "PodInitializing": // the kubelet's words for "on its way"
		return nil
	}
	return &Problem{
		Reason:  waiting.Reason,
		Message: fmt.Sprintf("Launcher Pod %s: %s", pod.Name, sentence(waiting.Message)),
	}
}

func setNotReady(s *Scope, status *v1.VirtualMachineInstanceStatus, reason, message string) {
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionFalse, Reason: reason, Message: message,
	}, metav1.NewTime(s.Now))
}

// stampPassed notes the phases that were passed without a write.
func stampPassed(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	vmistatus.StampPhase(status, v1.Pending, s.VMI.CreationTimestamp)
	vmistatus.StampPhase(status, v1.Scheduling, s.Pod.CreationTimestamp)
}
