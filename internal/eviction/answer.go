// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package eviction

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Facts are what an answer depends on.
type Facts struct {
	// Pod is the launcher Pod to be evicted.
	Pod *corev1.Pod
	// VMI is the one that the Pod was made for, or nil if there is none of its name.
	VMI *v1.VirtualMachineInstance
	// Default is the strategy of a VMI that names none.
	Default v1.EvictionStrategy
	// LiveMigration says that this installation can migrate guests.
	LiveMigration bool
}

// Answer is what whoever evicts is told.
type Answer struct {
	// Allowed lets the Pod be evicted, which shuts its guest down.
	Allowed bool
	// Mark says that the VMI is to be marked as one that has to leave its node.
	Mark bool
	// Message is why the eviction is denied.
	Message string
}

// What the descheduler looks for in a denial to know that the Pod will go all the same.
// Source: kubevirt/kubevirt pkg/virt-api/webhooks/validating-webhook/admitters/pod-eviction-admitter.go.
const (
	triggered  = "Eviction triggered evacuation of VMI %q"
	inProgress = "Evacuation in progress: " + triggered
)

// Decide answers an eviction. The beginnings of its messages are KubeVirt's.
func Decide(f Facts) Answer {
	if ended(f.Pod) || !protects(f.Pod, f.VMI) {
		return Answer{Allowed: true}
	}
	vmi := f.VMI
	switch StrategyOf(vmi, f.Default) {
	case v1.EvictionStrategyLiveMigrate:
		if why := Obstacle(vmi, f.LiveMigration); why != "" {
			return Answer{Message: fmt.Sprintf("VMI %s is configured with an eviction strategy but is not live-migratable: %s. "+
				"Nothing is done until it can migrate or is stopped", vmi.Name, why)}
		}
	case v1.EvictionStrategyLiveMigrateIfPossible:
		if Obstacle(vmi, f.LiveMigration) != "" {
			return Answer{Allowed: true}
		}
	case v1.EvictionStrategyExternal:
	default:
		return Answer{Allowed: true}
	}
	return move(f.Pod, vmi)
}

// move answers an eviction of a guest that leaves its node by itself.
func move(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) Answer {
	name := vmi.Namespace + "/" + vmi.Name
	switch node := vmi.Status.NodeName; {
	case IsMarked(vmi):
		return Answer{Message: fmt.Sprintf(inProgress, name)}
	case node == "":
		return Answer{Message: fmt.Sprintf("The guest of VMI %q is about to start in this Pod: evict it again when it runs", name)}
	case node == pod.Spec.NodeName:
		return Answer{Mark: true, Message: fmt.Sprintf(triggered, name)}
	case vmi.Status.MigrationState != nil && vmi.Status.MigrationState.SourcePod == pod.Name:
		return Answer{Message: fmt.Sprintf("The guest of VMI %q has moved to node %s: this Pod ends by itself", name, node)}
	default:
		return Answer{Message: "Eviction request for target Pod"}
	}
}

// ended says that nothing is left in a Pod that an eviction could disturb, or that it goes anyhow.
func ended(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// protects says that there is a VMI whose guest runs, or may run, in the Pod, and is to go on running. A Pod that lost its owner,
// as after a restore, is adopted again: the label tells whose it is.
func protects(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) bool {
	return vmi != nil && (podspec.IsOf(pod, vmi) || podspec.IsOrphanOf(pod, vmi)) && vmi.DeletionTimestamp == nil && !vmi.IsFinal()
}
