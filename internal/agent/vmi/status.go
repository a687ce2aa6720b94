// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/devices"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/machinetype"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// computeStatus updates the agent's fields of the status to what this reconciliation observed. What it could not
// observe stays unchanged, as when the hypervisor is unreachable.
func computeStatus(s *scope, phaseErr error) {
	status := &s.VMI.Status
	now := metav1.NewTime(s.Now)
	if s.DomainRead {
		setPhase(status, s.Domain, now)
		setPaused(s, now)
		setAgentConnected(status, s.report(), now)
		s.jobs.Report()
	}
	if s.Domain.Active() {
		setMachine(s.VMI, s.Domain.XML, now)
		setTopology(status, s.Domain.XML)
		setMemory(status, s.VMI, s.Domain, s.report())
		s.setMemoryOverhead()
		setInterfaces(s)
		s.devices.SetVolumes(s.disks)
		s.jobs.SetTracked()
		setGuestOS(status, s.report().info)
		setCredentials(s, now)
		setMigratable(s.VMI, now)
	}
	setSELinux(s)
	// A guest that is being started needs no condition: the next write reports that it runs, or why it does not.
	if s.Pod.DeletionTimestamp != nil || status.Phase == v1.Running || phase.IsFailure(phaseErr) {
		setReady(s, now)
	}
	setSynchronized(s, phaseErr, now)
}

// setPhase sets the phase Running. It sets no other phase: virt-controller derives from the Pod how a guest ended.
func setPhase(status *v1.VirtualMachineInstanceStatus, d *hypervisor.Domain, now metav1.Time) {
	if !d.Active() || d.Transient() {
		return
	}
	if status.Phase == v1.Scheduled || status.Phase == v1.Unknown {
		vmistatus.SetPhase(status, v1.Running, now)
	}
}

// setReady sets whether the guest runs in a Pod that is ready itself. It does nothing while virt-controller considers
// the node lost and reports the VMI as not ready, until shortly after this agent has renewed its Lease.
func setReady(s *scope, now metav1.Time) {
	if vmistatus.Lost(&s.VMI.Status) {
		return
	}
	ready := v1.VirtualMachineInstanceCondition{Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionFalse}
	switch {
	case s.Pod.DeletionTimestamp != nil:
		ready.Reason, ready.Message = v1.PodTerminatingReason, "The launcher Pod is being deleted"
		if s.shutdownSignaled() {
			ready.Message = messageShuttingDown
		}
	case s.DomainRead && !s.Domain.Active(), s.VMI.Status.Phase != v1.Running:
		ready.Reason, ready.Message = v1.GuestNotRunningReason, "The guest is not running"
	case s.DomainRead && s.inTransition() && vmistatus.IsConditionTrue(&s.VMI.Status, v1.VirtualMachineInstancePaused),
		s.DomainRead && s.Domain.State == hypervisor.StatePaused && !s.Domain.Transient():
		ready.Reason, ready.Message = v1.GuestNotRunningReason, "The guest is paused"
	case !s.DomainRead && isNotReady(&s.VMI.Status):
		// Whether the guest runs is unknown. The kubelet still reports the Pod of a guest that has just ended as ready.
		return
	default:
		ready.Status, ready.Reason, ready.Message = podReady(s.Pod)
	}
	vmistatus.SetCondition(&s.VMI.Status, ready, now)
}

func isNotReady(status *v1.VirtualMachineInstanceStatus) bool {
	ready := vmistatus.FindCondition(status, v1.VirtualMachineInstanceReady)
	return ready != nil && ready.Status == corev1.ConditionFalse
}

// podReady returns whether a Pod is ready, apart from the readiness gate of a paused guest. virt-controller derives
// that gate from the status that the agent writes, so waiting for it would cost a second write.
func podReady(pod *corev1.Pod) (status corev1.ConditionStatus, reason, message string) {
	containers, whole := podstate.Condition(pod, corev1.ContainersReady), podstate.Condition(pod, corev1.PodReady)
	switch {
	case containers == nil && whole == nil:
		return corev1.ConditionFalse, v1.PodConditionMissingReason, "The launcher Pod has no Ready condition"
	case containers == nil:
		return whole.Status, whole.Reason, whole.Message
	case containers.Status != corev1.ConditionTrue:
		return containers.Status, containers.Reason, containers.Message
	}
	for _, gate := range pod.Spec.ReadinessGates {
		if gate.ConditionType == v1.VirtualMachineUnpaused {
			continue
		}
		if whole == nil || whole.Status != corev1.ConditionTrue {
			return corev1.ConditionFalse, "ReadinessGatesNotReady",
				fmt.Sprintf("the readiness gate %s of the launcher Pod is not true", gate.ConditionType)
		}
	}
	return corev1.ConditionTrue, "", ""
}

// inTransition reports whether the guest's state is about to change without a request.
func (s *scope) inTransition() bool { return s.settling || s.Domain.Transient() }

// pausedForTransfer reports whether a migration has paused the guest to complete the transfer, because it changed
// memory too fast.
func (s *scope) pausedForTransfer() bool {
	m := s.VMI.Status.MigrationState
	return s.Domain.Transient() && m != nil && m.Mode == v1.MigrationPaused && !vmistatus.HasEnded(m) &&
		m.SourceNode == s.VMI.Status.NodeName
}

func setAgentConnected(status *v1.VirtualMachineInstanceStatus, report guestReport, now metav1.Time) {
	if !report.connected {
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceAgentConnected)
		return
	}
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceAgentConnected, Status: corev1.ConditionTrue,
	}, now)
}

// setSynchronized sets the condition Synchronized to what prevents the agent from satisfying the spec, or removes it.
func setSynchronized(s *scope, phaseErr error, now metav1.Time) {
	condition := v1.VirtualMachineInstanceCondition{Type: v1.VirtualMachineInstanceSynchronized,
		Status: corev1.ConditionFalse}
	var lost *phase.UnreachableError
	switch failed := phase.Failures(phaseErr); {
	case errors.As(phaseErr, &lost):
		condition.Reason = ReasonUnreachable
		condition.Message = "The guest's state is not known: " + hypervisor.Clean(lost.Error())
	case len(failed) > 0:
		var message string
		condition.Reason, message = phase.DescribeFailures(failed)
		condition.Message = hypervisor.CleanLine(message, phase.MaxMessage)
	case s.DomainRead:
		vmistatus.RemoveCondition(&s.VMI.Status, v1.VirtualMachineInstanceSynchronized)
		return
	default:
		// A wait before the domain was read changes nothing.
		return
	}
	vmistatus.SetCondition(&s.VMI.Status, condition, now)
}

// setMachine sets the guest's machine type, and whether it started with another one than its spec has. A guest that
// migrated from another build of QEMU has the one of its spec.
func setMachine(vmi *v1.VirtualMachineInstance, d *libvirtxml.Domain, now metav1.Time) {
	if d.OS == nil || d.OS.Type == nil || d.OS.Type.Machine == "" {
		return
	}
	status := &vmi.Status
	status.Machine = &v1.Machine{Type: hypervisor.Clean(d.OS.Type.Machine)}
	replaced := ""
	if spec := vmi.Spec.Domain.Machine; spec != nil && spec.Type != status.Machine.Type {
		replaced = machinetype.Replaced(spec.Type)
	}
	if replaced == "" {
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceMachineTypeReplaced)
		return
	}
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceMachineTypeReplaced, Status: corev1.ConditionTrue,
		Reason: v1.VirtualMachineInstanceReasonMachineTypeOfOtherBuild, Message: "spec.domain.machine.type: " + replaced,
	}, now)
}

func setTopology(status *v1.VirtualMachineInstanceStatus, d *libvirtxml.Domain) {
	if t := devices.TopologyOf(d); t != nil {
		status.CurrentCPUTopology = t
	}
}

// currentMemory returns the guest's current memory, or nil if libvirt does not report it. For a guest whose memory can
// grow, it is what it had at its start and what it has taken from its memory device. For others, it is what the balloon
// leaves.
func currentMemory(d *hypervisor.Domain) *resource.Quantity {
	switch {
	case !d.Active():
		return nil
	case d.XML.MaximumMemory != nil:
		return bytesOf(d.AtBoot() + d.Plugged)
	case d.XML.CurrentMemory == nil:
		return nil
	default:
		return bytesOf(hypervisor.Bytes(uint64(d.XML.CurrentMemory.Value), d.XML.CurrentMemory.Unit))
	}
}

// setMemory sets how much memory the guest had at boot, has now, and may have.
func setMemory(
	status *v1.VirtualMachineInstanceStatus, vmi *v1.VirtualMachineInstance, d *hypervisor.Domain, report guestReport,
) {
	if d.XML.Memory == nil {
		return
	}
	memory := &v1.MemoryStatus{}
	if status.Memory != nil {
		memory = status.Memory.DeepCopy()
	}
	atBoot := bytesOf(d.AtBoot())
	current := atBoot
	if report.memory != nil {
		current = report.memory
	}
	if memory.GuestAtBoot == nil {
		memory.GuestAtBoot = atBoot
	}
	memory.GuestCurrent = current
	if d.XML.MaximumMemory != nil {
		memory.GuestRequested = bytesOf(d.Granted())
	} else {
		memory.GuestRequested = requestedMemory(vmi, atBoot)
	}
	status.Memory = memory
}

// setMemoryOverhead sets what the launcher Pod requests beyond the guest's memory, from the annotation of the Pod that
// the guest is in: after a migration another Pod may request more. The format is that of
// migrationState.targetMemoryOverhead.
func (s *scope) setMemoryOverhead() {
	memory := s.VMI.Status.Memory
	if memory == nil {
		return
	}
	memory.MemoryOverhead = nil
	if !s.Config.FeatureGates.IsEnabled(clusterconfig.GateMemoryOverheadReport) {
		return
	}
	bytes, err := strconv.ParseInt(s.Pod.Annotations[v1.MemoryOverheadAnnotationBytes], 10, 64)
	if err != nil || bytes <= 0 {
		return // Another client has changed the annotation.
	}
	memory.MemoryOverhead = canonical(resource.NewQuantity(bytes, resource.BinarySI))
}

func requestedMemory(vmi *v1.VirtualMachineInstance, otherwise *resource.Quantity) *resource.Quantity {
	if m := vmi.Spec.Domain.Memory; m != nil && m.Guest != nil {
		return canonical(m.Guest)
	}
	if q, ok := vmi.Spec.Domain.Resources.Requests[corev1.ResourceMemory]; ok {
		return canonical(&q)
	}
	return otherwise
}

// bytesOf returns a size as a quantity.
func bytesOf(bytes uint64) *resource.Quantity {
	return canonical(resource.NewQuantity(int64(min(bytes, math.MaxInt64)), resource.BinarySI))
}

// canonical returns a quantity as the API server returns it, so that equal quantities compare as equal.
func canonical(q *resource.Quantity) *resource.Quantity {
	parsed, err := resource.ParseQuantity(q.String())
	if err != nil {
		return q
	}
	// Comparisons include the text that a quantity caches.
	_ = parsed.String()
	return &parsed
}

func setGuestOS(status *v1.VirtualMachineInstanceStatus, guest *hypervisor.GuestInfo) {
	if guest == nil {
		return
	}
	status.GuestOSInfo = osInfo(guest)
}
