// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// computeStatus brings the agent's fields of the status up to what this reconcile saw. What it could not see stays as
// it is: a hypervisor out of reach changes nothing about the guest.
func computeStatus(s *scope, outcome error) {
	status := &s.vmi.Status
	now := metav1.NewTime(s.now)
	if s.looked {
		setPhase(status, s.domain, now)
		setPaused(s, now)
		setAgentConnected(status, s.report(), now)
		setFrozen(status, s.domain)
	}
	if s.domain.Active() {
		setMachine(status, s.domain.XML)
		setTopology(status, s.domain.XML)
		setMemory(status, s.vmi, s.domain.XML, s.report())
		s.setMemoryOverhead()
		setInterfaces(s)
		setVolumes(s)
		setGuestOS(status, s.report().info)
		setCredentials(s, now)
		setMigratable(s.vmi, now)
	}
	// A guest that is on its way needs no word: the next write says that it runs, or why it does not.
	if s.pod.DeletionTimestamp != nil || status.Phase == v1.Running || isFailure(outcome) {
		setReady(s, now)
	}
	setSynchronized(s, outcome, now)
}

// setPhase notes that a guest has come to run. It never takes that back: how a guest ended is for the controller to
// tell from the Pod.
func setPhase(status *v1.VirtualMachineInstanceStatus, d *hypervisor.Domain, now metav1.Time) {
	if !d.Active() || isTransient(d) {
		return
	}
	if status.Phase == v1.Scheduled || status.Phase == v1.Unknown {
		vmistatus.SetPhase(status, v1.Running, now)
	}
}

// setReady says whether the guest runs in a Pod that is ready itself. As long as the node counts as lost virt-controller says
// that it is not: soon after this agent is heard again that is taken back.
func setReady(s *scope, now metav1.Time) {
	if vmistatus.Lost(&s.vmi.Status) {
		return
	}
	ready := v1.VirtualMachineInstanceCondition{Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionFalse}
	switch {
	case s.pod.DeletionTimestamp != nil:
		ready.Reason, ready.Message = v1.PodTerminatingReason, "The launcher Pod is being deleted"
		if s.shutdownSignaled() {
			ready.Message = messageShuttingDown
		}
	case s.looked && !s.domain.Active(), s.vmi.Status.Phase != v1.Running:
		ready.Reason, ready.Message = v1.GuestNotRunningReason, "The guest is not running"
	case s.looked && s.inTransition() && vmistatus.IsConditionTrue(&s.vmi.Status, v1.VirtualMachineInstancePaused),
		s.looked && s.domain.State == hypervisor.StatePaused && !isTransient(s.domain):
		ready.Reason, ready.Message = v1.GuestNotRunningReason, "The guest is paused"
	default:
		ready.Status, ready.Reason, ready.Message = podReady(s.pod)
	}
	vmistatus.SetCondition(&s.vmi.Status, ready, now)
}

// podReady is whether a Pod is ready but for the gate of a paused guest. The gate is the controller's echo of what the
// agent itself knows, so to wait for it would cost a second write of the status.
func podReady(pod *corev1.Pod) (status corev1.ConditionStatus, reason, message string) {
	var containers, whole *corev1.PodCondition
	for i := range pod.Status.Conditions {
		switch c := &pod.Status.Conditions[i]; c.Type {
		case corev1.ContainersReady:
			containers = c
		case corev1.PodReady:
			whole = c
		}
	}
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

// isTransient says that libvirt is between two states of the guest.
func isTransient(d *hypervisor.Domain) bool {
	return d.Active() && d.State == hypervisor.StatePaused && d.Reason == hypervisor.PausedTransient
}

// inTransition says that the guest's state is about to change by itself, or has just changed and may be taken back.
func (s *scope) inTransition() bool { return s.settling || isTransient(s.domain) }

// stoppedToCopy says that the guest stands still while the rest of it is copied to another node, because it changed too fast.
func (s *scope) stoppedToCopy() bool {
	m := s.vmi.Status.MigrationState
	return isTransient(s.domain) && m != nil && m.Mode == v1.MigrationPaused && !vmistatus.HasEnded(m) && m.SourceNode == s.vmi.Status.NodeName
}

// messageIOError is the message of the condition Paused after an I/O error. KubeVirt's.
const messageIOError = "VMI was paused, low-level IO error detected"

func setPaused(s *scope, now metav1.Time) {
	status, d := &s.vmi.Status, s.domain
	paused := v1.VirtualMachineInstanceCondition{Type: v1.VirtualMachineInstancePaused, Status: corev1.ConditionTrue}
	switch {
	case s.stoppedToCopy() && !vmistatus.IsConditionTrue(status, v1.VirtualMachineInstancePaused):
		// It may last: that is what allowWorkloadDisruption allows.
		paused.Reason, paused.Message = v1.PausedByMigrationMonitorReason, "VMI was paused by the migration monitor"
	case s.inTransition():
		// libvirt or the agent ends that, and a guest that its user paused is so before and after.
		return
	case !d.Active() || d.State != hypervisor.StatePaused:
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstancePaused)
		return
	case d.Reason == hypervisor.PausedIOError:
		paused.Reason, paused.Message = v1.PausedIOErrorReason, messageIOError
	default:
		paused.Reason, paused.Message = v1.PausedByUserReason, "VMI was paused by user"
	}
	vmistatus.SetCondition(status, paused, now)
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

// frozen is the value of fsFreezeStatus while the guest's file systems are. KubeVirt's (pkg/virt-launcher/virtwrap/api).
const frozen = "frozen"

func setFrozen(status *v1.VirtualMachineInstanceStatus, d *hypervisor.Domain) {
	status.FSFreezeStatus = ""
	if d.Freeze() != nil {
		status.FSFreezeStatus = frozen
	}
}

// setSynchronized says what keeps the agent from doing what the spec asks for, and is silent when nothing does.
func setSynchronized(s *scope, outcome error, now metav1.Time) {
	condition := v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceSynchronized, Status: corev1.ConditionFalse, Reason: reasonSynchronizing,
	}
	var terminal *Terminal
	var retry *Retry
	var lost *unreachable
	switch {
	case errors.As(outcome, &lost):
		condition.Reason = ReasonUnreachable
		condition.Message = "The guest's state is not known: " + hypervisor.Clean(lost.Error())
	case errors.As(outcome, &terminal):
		condition.Reason, condition.Message = terminal.Reason, hypervisor.CleanLine(terminal.Error(), maxMessage)
	case errors.As(outcome, &retry):
		condition.Reason, condition.Message = retry.Reason, hypervisor.CleanLine(retry.Error(), maxMessage)
	case isFailure(outcome):
		condition.Message = hypervisor.CleanLine(outcome.Error(), maxMessage)
	case s.looked:
		vmistatus.RemoveCondition(&s.vmi.Status, v1.VirtualMachineInstanceSynchronized)
		return
	default:
		// A wait before anything was seen is no change.
		return
	}
	vmistatus.SetCondition(&s.vmi.Status, condition, now)
}

// maxMessage bounds the bytes of a condition's message, which may carry what a launcher said.
const maxMessage = 1024

func setMachine(status *v1.VirtualMachineInstanceStatus, d *libvirtxml.Domain) {
	if d.OS == nil || d.OS.Type == nil || d.OS.Type.Machine == "" {
		return
	}
	status.Machine = &v1.Machine{Type: hypervisor.Clean(d.OS.Type.Machine)}
}

func setTopology(status *v1.VirtualMachineInstanceStatus, d *libvirtxml.Domain) {
	if d.CPU == nil || d.CPU.Topology == nil {
		return
	}
	t := d.CPU.Topology
	status.CurrentCPUTopology = &v1.CPUTopology{
		Cores: uint32(t.Cores), Sockets: uint32(t.Sockets), Threads: uint32(t.Threads),
	}
}

// currentMemory is what a guest has now, by libvirt's word: its balloon decides. It is nil if that is not known.
func currentMemory(d *hypervisor.Domain) *resource.Quantity {
	if !d.Active() || d.XML.CurrentMemory == nil {
		return nil
	}
	return binarySize(uint64(d.XML.CurrentMemory.Value), d.XML.CurrentMemory.Unit)
}

// setMemory tells how much memory the guest got, has and was meant to have.
func setMemory(status *v1.VirtualMachineInstanceStatus, vmi *v1.VirtualMachineInstance, d *libvirtxml.Domain, report guestReport) {
	if d.Memory == nil {
		return
	}
	memory := &v1.MemoryStatus{}
	if status.Memory != nil {
		memory = status.Memory.DeepCopy()
	}
	atBoot := binarySize(uint64(d.Memory.Value), d.Memory.Unit)
	current := atBoot
	if report.memory != nil {
		current = report.memory
	}
	if memory.GuestAtBoot == nil {
		memory.GuestAtBoot = atBoot
	}
	memory.GuestCurrent = current
	memory.GuestRequested = requestedMemory(vmi, atBoot)
	status.Memory = memory
}

// setMemoryOverhead tells what the launcher Pod has beyond the guest's memory, by the Pod's own annotation: another Pod, to which the guest
// has moved, may have more. The words are those of migrationState.targetMemoryOverhead.
func (s *scope) setMemoryOverhead() {
	memory := s.vmi.Status.Memory
	if memory == nil {
		return
	}
	memory.MemoryOverhead = nil
	if !s.config.FeatureGates.IsEnabled(clusterconfig.GateMemoryOverheadReport) {
		return
	}
	bytes, err := strconv.ParseInt(s.pod.Annotations[v1.MemoryOverheadAnnotationBytes], 10, 64)
	if err != nil || bytes <= 0 {
		return // Somebody has changed it.
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

// binarySize is a size of a domain's XML. libvirt prints KiB unless it says otherwise.
func binarySize(value uint64, unit string) *resource.Quantity {
	factor := uint64(1) << 10
	switch unit {
	case "b", "bytes":
		factor = 1
	case "M", "MiB":
		factor = 1 << 20
	case "G", "GiB":
		factor = 1 << 30
	}
	return canonical(resource.NewQuantity(int64(value*factor), resource.BinarySI))
}

// canonical is a quantity as the API server gives it back, so that comparing finds no difference where there is none.
func canonical(q *resource.Quantity) *resource.Quantity {
	parsed, err := resource.ParseQuantity(q.String())
	if err != nil {
		return q
	}
	// Comparisons look at the text that a parsed quantity keeps.
	_ = parsed.String()
	return &parsed
}

func setGuestOS(status *v1.VirtualMachineInstanceStatus, guest *hypervisor.GuestInfo) {
	if guest == nil {
		return
	}
	status.GuestOSInfo = osInfo(guest)
}
