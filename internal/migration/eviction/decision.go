// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package eviction

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
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
	switch StrategyOf(vmi, f.Default) {
	case v1.EvictionStrategyLiveMigrate:
		if obstacle := Obstacle(vmi, f.LiveMigration); obstacle != "" {
			return Decision{Message: fmt.Sprintf("VMI %s is configured with an eviction strategy but is not live-migratable: %s. "+
				"Nothing is done until it can migrate or is stopped", vmi.Name, obstacle)}
		}
	case v1.EvictionStrategyLiveMigrateIfPossible:
		if Obstacle(vmi, f.LiveMigration) != "" {
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
		return Decision{Message: fmt.Sprintf("The guest of VMI %q is about to start in this Pod: evict it again when it runs", name)}
	case node == pod.Spec.NodeName:
		return Decision{Mark: true, Message: fmt.Sprintf(triggered, name)}
	case vmi.Status.MigrationState != nil && vmi.Status.MigrationState.SourcePod == pod.Name:
		return Decision{Message: fmt.Sprintf("The guest of VMI %q has moved to node %s: this Pod ends by itself", name, node)}
	default:
		return Decision{Message: "Eviction request for target Pod"}
	}
}

// protects reports whether the guest of the Pod's VMI runs or may run in the Pod, and is not about to end. A Pod without an owner, as after
// a restore from a backup, will be adopted again, and is identified by its label.
func protects(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) bool {
	return vmi != nil && (podspec.IsOf(pod, vmi) || podspec.IsOrphanOf(pod, vmi)) && vmi.DeletionTimestamp == nil && !vmi.IsFinal()
}
