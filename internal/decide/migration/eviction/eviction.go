// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package eviction decides whether a launcher Pod may be evicted, or its guest has to migrate instead. It is pure: the
// webhook and the evacuation controller read and write the objects.
package eviction

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Facts are the input of a decision.
type Facts struct {
	// Pod is the launcher Pod to be evicted.
	Pod *corev1.Pod
	// VMI is the Pod's VMI, or nil if no VMI with its name exists.
	VMI *v1.VirtualMachineInstance
	// Default is the strategy of a VMI that has none.
	Default v1.EvictionStrategy
	// LiveMigration reports whether this installation can migrate guests.
	LiveMigration bool
}

// Decision is the response to an eviction.
type Decision struct {
	// Allowed reports whether the Pod may be evicted, which shuts its guest down.
	Allowed bool
	// Mark reports whether the VMI is to be marked for evacuation.
	Mark bool
	// Message is why the eviction is denied.
	Message string
}

// Prefixes of messages. From these, the descheduler recognizes that the Pod will be evacuated.
// Source: kubevirt/kubevirt pkg/virt-api/webhooks/validating-webhook/admitters/pod-eviction-admitter.go.
const (
	triggered  = "Eviction triggered evacuation of VMI %q"
	inProgress = "Evacuation in progress: " + triggered
)

// Decide decides on an eviction. Its messages start with KubeVirt's text.
func Decide(f Facts) Decision {
	if podstate.TerminalOrDeleted(f.Pod) || !protects(f.Pod, f.VMI) {
		return Decision{Allowed: true}
	}
	vmi := f.VMI
	obstacle := Obstacle(vmi, f.LiveMigration)
	if obstacle == "" && podspec.StartedByKubeVirt(f.Pod) {
		obstacle = "KubeVirt has started it, and it can migrate after its next restart"
	}
	switch StrategyOf(vmi, f.Default) {
	case v1.EvictionStrategyLiveMigrate:
		if obstacle != "" {
			return Decision{Message: fmt.Sprintf(
				"VMI %s is configured with an eviction strategy but is not live-migratable: %s. "+
					"Nothing is done until it can migrate or is stopped", vmi.Name, obstacle)}
		}
	case v1.EvictionStrategyLiveMigrateIfPossible:
		if obstacle != "" {
			return Decision{Allowed: true}
		}
	case v1.EvictionStrategyExternal:
	default:
		return Decision{Allowed: true}
	}
	return evacuate(f.Pod, vmi)
}

// evacuate denies the eviction of a Pod whose guest migrates instead.
func evacuate(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) Decision {
	name := vmi.Namespace + "/" + vmi.Name
	switch node := vmi.Status.NodeName; {
	case IsMarked(vmi):
		return Decision{Message: fmt.Sprintf(inProgress, name)}
	case node == "":
		return Decision{Message: fmt.Sprintf("The guest of VMI %q is about to start in this Pod: evict it again when it runs",
			name)}
	case node == pod.Spec.NodeName:
		return Decision{Mark: true, Message: fmt.Sprintf(triggered, name)}
	case vmi.Status.MigrationState != nil && vmi.Status.MigrationState.SourcePod == pod.Name:
		return Decision{Message: fmt.Sprintf("The guest of VMI %q has moved to node %s: this Pod ends by itself", name, node)}
	default:
		return Decision{Message: "Eviction request for target Pod"}
	}
}

// protects reports whether the guest of the Pod's VMI runs or may run in the Pod, and is not about to end. A Pod
// without an owner, as after a restore from a backup, will be adopted again, and is identified by its label.
func protects(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) bool {
	return vmi != nil && (podspec.IsOf(pod, vmi) || podspec.IsOrphanOf(pod, vmi)) && vmi.DeletionTimestamp == nil &&
		!vmi.IsFinal()
}

// Annotations of a launcher Pod that is being evicted.
const (
	// InProgressAnnotation informs the descheduler that an eviction that it requested is in progress. Its value is
	// KubeVirt's: kubevirt/kubevirt pkg/virt-controller/watch/descheduler.
	InProgressAnnotation = "descheduler.alpha.kubernetes.io/eviction-in-progress"
	inProgressValue      = "kubevirt"
	// DrainAnnotation means that the Pod's node was unschedulable when the Pod was evicted. This is a drain, which ends
	// when the node is schedulable again. Other evictions, such as the descheduler's, do not depend on the node. KubeVirt
	// does not have this annotation.
	DrainAnnotation = "kubevirt.io/evicted-by-drain"
)

// SourceDescheduler is the value of the annotation kubevirt.io/eviction-source of a VMI that the descheduler evicts.
// Migrations for drains have priority over its migration.
const SourceDescheduler = "descheduler"

// The descheduler identifies itself in its evictions. Source: kubernetes-sigs/descheduler pkg/descheduler/evictions.
const (
	requestedByAnnotation = "requested-by"
	deschedulerName       = "sigs.k8s.io/descheduler"
)

// SourceOf returns SourceDescheduler if an eviction has the descheduler's annotations, and otherwise an empty string.
func SourceOf(annotations map[string]string) string {
	if annotations[requestedByAnnotation] == deschedulerName {
		return SourceDescheduler
	}
	return ""
}

// Annotate sets the annotations of a Pod that is evicted. drained reports whether this is because of a drain of its
// node.
func Annotate(pod *metav1.ObjectMeta, drained bool) {
	metav1.SetMetaDataAnnotation(pod, InProgressAnnotation, inProgressValue)
	if drained {
		metav1.SetMetaDataAnnotation(pod, DrainAnnotation, "true")
	} else {
		delete(pod.Annotations, DrainAnnotation)
	}
}

// Forget removes the annotations.
func Forget(pod *metav1.ObjectMeta) {
	delete(pod.Annotations, InProgressAnnotation)
	delete(pod.Annotations, DrainAnnotation)
}

// IsAnnotated reports whether a Pod has any of the annotations.
func IsAnnotated(pod *metav1.ObjectMeta) bool {
	_, inProgress := pod.Annotations[InProgressAnnotation]
	return inProgress || ByDrain(pod)
}

// ByDrain reports whether a Pod was evicted by a drain of its node.
func ByDrain(pod *metav1.ObjectMeta) bool { return pod.Annotations[DrainAnnotation] == "true" }

// HasTaint reports whether a node has the deprecated taint that requests an evacuation.
func HasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints,
		func(t corev1.Taint) bool { return t.Key == key && t.Effect == corev1.TaintEffectNoSchedule })
}

// StrategyOf returns the strategy of a VMI: its own, or the default.
func StrategyOf(vmi *v1.VirtualMachineInstance, fallback v1.EvictionStrategy) v1.EvictionStrategy {
	if vmi.Spec.EvictionStrategy != nil {
		return *vmi.Spec.EvictionStrategy
	}
	return fallback
}

// Migrates reports whether virt-controller migrates a VMI of the strategy when its Pod is evicted.
func Migrates(strategy v1.EvictionStrategy) bool {
	return strategy == v1.EvictionStrategyLiveMigrate || strategy == v1.EvictionStrategyLiveMigrateIfPossible
}

// Obstacle explains why a VMI cannot migrate now; empty if it can.
func Obstacle(vmi *v1.VirtualMachineInstance, liveMigration bool) string {
	condition := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceIsMigratable)
	switch {
	case !liveMigration:
		return "this installation cannot migrate guests"
	case condition == nil && !vmi.IsRunning():
		return fmt.Sprintf("its guest does not run yet (phase %s)", phaseOf(vmi))
	case condition == nil:
		return fmt.Sprintf("the agent of node %s has not reported yet whether it can", vmi.Status.NodeName)
	case condition.Status == corev1.ConditionTrue:
		return ""
	case condition.Message != "":
		return condition.Message
	default:
		return fmt.Sprintf("its condition %s is %s (%s)", condition.Type, condition.Status, condition.Reason)
	}
}

func phaseOf(vmi *v1.VirtualMachineInstance) v1.VirtualMachineInstancePhase {
	if vmi.Status.Phase == v1.VmPhaseUnset {
		return v1.Pending
	}
	return vmi.Status.Phase
}

// IsMarked reports whether a VMI is marked for evacuation of its current node. A mark for another node is stale.
func IsMarked(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Status.EvacuationNodeName != "" && vmi.Status.EvacuationNodeName == vmi.Status.NodeName
}

// Mark marks a VMI for evacuation of its node. The condition's transition time is the time of the request.
func Mark(status *v1.VirtualMachineInstanceStatus, now metav1.Time) {
	// The condition is removed first, so that a new request has a new time even if there is a stale mark.
	vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceEvictionRequested)
	status.EvacuationNodeName = status.NodeName
	Observe(status, now)
}

// Unmark removes the mark.
func Unmark(status *v1.VirtualMachineInstanceStatus) {
	status.EvacuationNodeName = ""
	Observe(status, metav1.Time{})
}

// Observe sets the condition EvictionRequested according to the mark, which users may also set or remove.
func Observe(status *v1.VirtualMachineInstanceStatus, now metav1.Time) {
	if status.EvacuationNodeName == "" {
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceEvictionRequested)
		return
	}
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceEvictionRequested, Status: corev1.ConditionTrue,
		Reason: v1.VirtualMachineInstanceReasonEvictionRequested,
		Message: fmt.Sprintf("An eviction of the launcher Pod on node %s was requested: the guest has to leave the node.",
			status.EvacuationNodeName),
	}, now)
}

// MarkedAt returns when the evacuation was requested. KubeVirt's API has no other field for it.
func MarkedAt(vmi *v1.VirtualMachineInstance) metav1.Time {
	condition := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceEvictionRequested)
	if condition == nil {
		return metav1.Time{}
	}
	return condition.LastTransitionTime
}
