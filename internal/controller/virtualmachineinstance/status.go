// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// patience is the age of a launcher Pod at which the phase Scheduling gets a write of its own. A VMI that starts faster
// goes from Pending to Scheduled at once.
const patience = 3 * time.Second

// writeStatus writes the status if the phases changed it, and then records the events that follow from the change.
func (s *scope) writeStatus(ctx context.Context) error {
	after := s.vmi.DeepCopy()
	if preparesStatus(&s.observed, &s.result, &after.Status) {
		s.findPodProblem()
	}
	computeStatus(&s.observed, &s.result, &after.Status)
	changed, err := vmistatus.Patch(ctx, s.client, vmistatus.Controller, s.vmi, after)
	if err != nil {
		return err
	}
	if !changed {
		return nil
	}
	before := s.vmi
	s.vmi = after
	s.recordStatusEvents(&before.Status)
	return nil
}

// findPodProblem sets the problem that keeps the launcher Pod of a preparing VMI from running. Without a problem, a Pod
// that was just created is not worth a write: it is reported later, if it does not run by then.
func (s *scope) findPodProblem() {
	if s.pod == nil || s.problem != nil {
		return
	}
	if s.problem = podProblem(s.pod); s.problem != nil || s.reportsPreparation() {
		return
	}
	if wait := s.untilReported(); wait > 0 {
		s.requeueAfter = outcome.Sooner(s.requeueAfter, wait)
	}
}

// reportsPreparation reports whether the status of a VMI that prepares is written even without a problem.
func (o *observed) reportsPreparation() bool {
	status := &o.vmi.Status
	return len(status.Conditions) > 0 || status.Phase == v1.Scheduling || o.importing || o.waitsForConsumer
}

// untilReported is how long the launcher Pod is too young for a write. It is positive until then.
func (o *observed) untilReported() time.Duration {
	return o.pod.CreationTimestamp.Add(patience).Sub(o.now)
}

// recordStatusEvents records the events that belong to the status that was just written.
func (s *scope) recordStatusEvents(before *v1.VirtualMachineInstanceStatus) {
	after := &s.vmi.Status
	if s.assigned && before.Phase != v1.Scheduled {
		s.event(corev1.EventTypeNormal, ReasonSuccessfulHandOver, actionAssign,
			"Pod ownership transferred to the node %s", after.NodeName)
	}
	if s.final != nil && before.Phase != s.final.phase {
		s.recordEndEvents(before)
	}
	if s.final == nil && s.silence != nil && after.Reason == ReasonNodeUnresponsive && before.Reason != after.Reason {
		s.event(corev1.EventTypeWarning, ReasonNodeUnresponsive, actionWait, "%s", s.silence.message)
	}
	s.recordHotplugEvents(before)
	current := vmistatus.FindCondition(after, v1.VirtualMachineInstanceSynchronized)
	former := vmistatus.FindCondition(before, v1.VirtualMachineInstanceSynchronized)
	if s.problem != nil && current != nil && (former == nil || *former != *current) {
		s.event(corev1.EventTypeWarning, current.Reason, actionWait, "%s", current.Message)
	}
}

// recordEndEvents records the events about the end, in KubeVirt's order and with its messages. Those about a guest are
// the agent's in KubeVirt; virt-controller, which observes the end here, records them with the agent as their source.
func (s *scope) recordEndEvents(before *v1.VirtualMachineInstanceStatus) {
	kind, ended := corev1.EventTypeNormal, "The VirtualMachineInstance was shut down."
	if s.final.phase == v1.Failed {
		kind, ended = corev1.EventTypeWarning, "The VirtualMachineInstance crashed."
	}
	if s.final.reason == ReasonFailedGuarantee || s.final.reason == ReasonImportFailed {
		s.event(kind, s.final.reason, actionEnd, "%s", s.final.message)
	}
	record := s.event
	if vmistatus.StageOf(before.Phase) == vmistatus.Live {
		record = s.agentEvent
	}
	if s.final.reason == launcherpod.OutcomePanicked {
		record(corev1.EventTypeWarning, s.final.reason, actionEnd, "%s", s.final.message)
	}
	if s.final.reason == launcherpod.OutcomeDestroyed {
		record(corev1.EventTypeNormal, v1.Deleted.String(), actionEnd, "VirtualMachineInstance stopping")
	}
	if s.pod != nil && vmistatus.StageOf(before.Phase) == vmistatus.Live {
		record(corev1.EventTypeNormal, v1.Deleted.String(), actionEnd, "Signaled Deletion")
	}
	record(kind, v1.Stopped.String(), actionEnd, "%s %s: %s", ended, s.final.reason, s.final.message)
}

// computeStatus brings a status up to date with what the reconciliation observed and decided, neither of which it
// changes.
func computeStatus(o *observed, r *result, status *v1.VirtualMachineInstanceStatus) {
	switch {
	case vmistatus.StageOf(status.Phase) == vmistatus.Ended:
	case r.final != nil:
		setFinalState(o, r, status)
	case r.assigned:
		setAssigned(o, r, status)
	case vmistatus.StageOf(status.Phase) == vmistatus.Live:
		setLive(o, r, status)
	case preparesStatus(o, r, status):
		setPreparing(o, r, status)
	}
}

// preparesStatus reports whether the VMI is to be assigned and still is not, after this reconciliation.
func preparesStatus(o *observed, r *result, status *v1.VirtualMachineInstanceStatus) bool {
	return r.final == nil && !r.assigned && vmistatus.StageOf(status.Phase) == vmistatus.Preparing && !o.deleting()
}

func setFinalState(o *observed, r *result, status *v1.VirtualMachineInstanceStatus) {
	vmistatus.SetPhase(status, r.final.phase, metav1.NewTime(o.now))
	status.Reason = r.final.reason
	vmistatus.RemoveCondition(status, v1.VirtualMachineInstancePodScheduled)
	vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceNodeUnresponsive)
	reason := v1.GuestNotRunningReason
	if o.pod == nil {
		reason = v1.PodNotExistsReason
	}
	setNotReady(o, status, reason, r.final.message)
}

func setAssigned(o *observed, r *result, status *v1.VirtualMachineInstanceStatus) {
	stampPassed(o, status)
	vmistatus.SetPhase(status, v1.Scheduled, metav1.NewTime(o.now))
	status.NodeName = o.pod.Spec.NodeName
	status.ActivePods = map[types.UID]string{o.pod.UID: o.pod.Spec.NodeName}
	status.LauncherContainerImageVersion = podspec.LauncherImage(o.pod)
	status.RuntimeUser = launcherpod.QEMUUser
	setTransport(o, status)
	setRevision(o, status)
	if o.pod.Status.QOSClass != "" {
		status.QOSClass = ptr.To(o.pod.Status.QOSClass)
	}
	status.VolumeStatus = volumeStatus(o)
	setHotplug(o, status)
	setImports(o, status)
	setProvisioning(o, status)
	status.VSOCKCID = r.vsockCID
	if r.tracking != v1.ChangedBlockTrackingUndefined {
		status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: r.tracking}
	}
	vmistatus.RemoveCondition(status, v1.VirtualMachineInstancePodScheduled)
	vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceSynchronized)
	setNotReady(o, status, v1.GuestNotRunningReason, "The launcher Pod runs, the guest is about to start.")
}

// setTransport copies the migration's transport from the Pod's annotation.
func setTransport(o *observed, status *v1.VirtualMachineInstanceStatus) {
	if o.pod == nil {
		return
	}
	if _, unix := o.pod.Annotations[v1.MigrationTransportUnixAnnotation]; unix {
		status.MigrationTransport = v1.MigrationTransportUnix
	}
}

// setPreparing changes nothing unless there is something to report: a problem, or a Pod that has not started quickly.
func setPreparing(o *observed, r *result, status *v1.VirtualMachineInstanceStatus) {
	if r.problem == nil && !o.reportsPreparation() && (o.pod == nil || o.untilReported() > 0) {
		return
	}
	switch {
	case o.refused():
		setRefused(o, status)
	case o.pod != nil:
		stampPassed(o, status)
		vmistatus.SetPhase(status, v1.Scheduling, o.pod.CreationTimestamp)
		setNotReady(o, status, v1.GuestNotRunningReason, "The launcher Pod does not run yet.")
	default:
		setNotReady(o, status, v1.PodNotExistsReason, "There is no launcher Pod yet.")
	}
	setRevision(o, status)
	setImports(o, status)
	setProvisioning(o, status)
	setProblem(o, r, status)
}

// setRevision sets the name of the ControllerRevision with the VM's spec that the VMI was made from. The VM's
// reconciler sets the annotation with the generation, and changes it only once the status has the name.
func setRevision(o *observed, status *v1.VirtualMachineInstanceStatus) {
	owner := vmistatus.VMOf(o.vmi)
	if status.VirtualMachineRevisionName != "" || owner == nil {
		return
	}
	generation, err := strconv.ParseInt(o.vmi.Annotations[v1.VirtualMachineGenerationAnnotation], 10, 64)
	if err != nil {
		return // The VM adopted the VMI, which has no revision.
	}
	status.VirtualMachineRevisionName = v1.StartRevisionName(owner.UID, generation)
}

func setProblem(o *observed, r *result, status *v1.VirtualMachineInstanceStatus) {
	now := metav1.NewTime(o.now)
	if r.problem == nil {
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstancePodScheduled)
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceSynchronized)
		return
	}
	if r.problem.unschedulable {
		reason := corev1.PodReasonUnschedulable
		if r.problem.fromScheduler {
			reason = r.problem.reason
		}
		vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
			Type: v1.VirtualMachineInstancePodScheduled, Status: corev1.ConditionFalse,
			Reason: reason, Message: r.problem.message,
		}, now)
	} else {
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstancePodScheduled)
	}
	if r.problem.fromScheduler {
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceSynchronized)
		return
	}
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse,
		Reason: r.problem.reason, Message: r.problem.message,
	}, now)
}

// podProblem returns why a Pod does not run, as the scheduler or the kubelet wrote into its status, or nil.
func podProblem(pod *corev1.Pod) *problem {
	scheduled := podstate.Condition(pod, corev1.PodScheduled)
	if scheduled != nil && scheduled.Status == corev1.ConditionFalse {
		return &problem{reason: scheduled.Reason, message: scheduled.Message, unschedulable: true, fromScheduler: true}
	}
	container := podstate.Compute(pod)
	if podspec.AttachmentUser(pod) != "" && len(pod.Status.ContainerStatuses) > 0 {
		container = &pod.Status.ContainerStatuses[0]
	}
	if container == nil || container.State.Waiting == nil {
		return nil
	}
	waiting := container.State.Waiting
	switch waiting.Reason {
	case "", "ContainerCreating", "PodInitializing": // the kubelet's reasons while nothing is wrong
		return nil
	}
	return &problem{
		reason:  waiting.Reason,
		message: podTitle(pod) + ": " + cleanMessage(waiting.Message),
	}
}

func setNotReady(o *observed, status *v1.VirtualMachineInstanceStatus, reason, message string) {
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionFalse, Reason: reason, Message: message,
	}, metav1.NewTime(o.now))
}

// stampPassed stamps the phases that were passed without a write.
func stampPassed(o *observed, status *v1.VirtualMachineInstanceStatus) {
	vmistatus.StampPhase(status, v1.Pending, o.vmi.CreationTimestamp)
	vmistatus.StampPhase(status, v1.Scheduling, o.pod.CreationTimestamp)
}
