// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	v1 "github.com/vireo-project/vireo/api/v1"
)

// Writer is a process that writes the status of VMIs.
type Writer string

// The writers. The agents of a migration's two nodes are writers of their own: they share one field, and the one of the
// target's node writes nothing else until it owns the guest.
const (
	// Controller is virt-controller.
	Controller Writer = "virt-controller"
	// Handler is virt-handler, the agent of the guest's node.
	Handler Writer = "virt-handler"
	// MigrationSource is the agent of the node that a guest leaves.
	MigrationSource Writer = "virt-handler of the migration's source"
	// MigrationTarget is the agent of the node that a guest goes to.
	MigrationTarget Writer = "virt-handler of the migration's target"
)

// Stage is the part of a VMI's life that decides who owns the fields that change hands.
type Stage int

// The stages, in the order in which a VMI passes them.
const (
	// Preparing lasts until the hand-over: there is no launcher Pod yet, or it does not run.
	Preparing Stage = iota
	// Live lasts from the hand-over until the controller has written a final phase.
	Live
	// Ended begins with the final phase.
	Ended
)

// StageOf returns the stage that a phase belongs to. Unknown is Live: not being able to reach a guest ends nothing.
func StageOf(phase v1.VirtualMachineInstancePhase) Stage {
	switch phase {
	case v1.VmPhaseUnset, v1.Pending, v1.Scheduling, v1.WaitingForSync:
		return Preparing
	case v1.Succeeded, v1.Failed:
		return Ended
	default:
		return Live
	}
}

// InCharge returns the writer that owns the phase of a VMI as it stands. The controller has one right beyond it:
// to end a Live VMI whose launcher Pod is finished or gone.
func InCharge(status *v1.VirtualMachineInstanceStatus) Writer {
	return fieldOwners["phase"].at(StageOf(status.Phase))
}

// owners says who writes a field in each stage.
type owners struct {
	preparing, live, ended Writer
}

func (o owners) at(stage Stage) Writer {
	switch stage {
	case Preparing:
		return o.preparing
	case Live:
		return o.live
	default:
		return o.ended
	}
}

var (
	// always the controller: facts about the Pod and the orders that users gave.
	byController = owners{Controller, Controller, Controller}
	// always the agent: what only the hypervisor or the guest can tell.
	byHandler = owners{Handler, Handler, Handler}
	// the controller, except while a guest may run.
	changesHands = owners{Controller, Handler, Controller}
)

// fieldOwners is the table of writers by the JSON name of the status field. Conditions are in conditionOwners.
var fieldOwners = map[string]owners{
	// The controller leads a VMI to the hand-over and ends it; the agent moves it between the phases of a live guest.
	"phase": changesHands,
	// A stamp is written together with its phase.
	"phaseTransitionTimestamps": changesHands,
	// Why the VMI waits or why it ended. The agent explains itself in conditions.
	"reason": byController,
	// Targets, sizes and phases come from the running domain. Claims are in claimOwners.
	"volumeStatus": changesHands,

	"nodeName":                      byController,
	"activePods":                    byController,
	"launcherContainerImageVersion": byController,
	"qosClass":                      byController,
	"virtualMachineRevisionName":    byController,
	"runtimeUser":                   byController,
	"evacuationNodeName":            byController,
	"topologyHints":                 byController,
	"VSOCKCID":                      byController,
	"migratedVolumes":               byController,
	"migrationTransport":            byController,
	"changedBlockTracking":          byController,

	"interfaces":         byHandler,
	"guestOSInfo":        byHandler,
	"memory":             byHandler,
	"machine":            byHandler,
	"currentCPUTopology": byHandler,
	"migrationMethod":    byHandler,
	"kernelBootStatus":   byHandler,
	"fsFreezeStatus":     byHandler,
	"selinuxContext":     byHandler,
}

// conditionsField, migrationField and volumesField are the fields with a writer for each of their parts: conditionOwners,
// migrationOwners and claimOwners say which.
const (
	conditionsField = "conditions"
	migrationField  = "migrationState"
	volumesField    = "volumeStatus"
	claimsField     = "volumeStatus.persistentVolumeClaimInfo"
)

// claimOwners write what a volume's status says about its claim: only the controller reads claims, which grow while a guest runs.
var claimOwners = byController

// conditionOwners is the table of writers by condition type.
var conditionOwners = map[v1.VirtualMachineInstanceConditionType]owners{
	// Before the hand-over the Pod tells whether the VMI is ready, then the guest does, then nothing can be ready. While the node
	// is lost, nothing can be said: ownersOf has that.
	v1.VirtualMachineInstanceReady: changesHands,
	// False while the writer in charge cannot do what the spec asks for.
	v1.VirtualMachineInstanceSynchronized: changesHands,

	v1.VirtualMachineInstancePodScheduled:                      byController,
	v1.VirtualMachineInstanceProvisioning:                      byController,
	v1.VirtualMachineInstanceDataVolumesReady:                  byController,
	v1.VirtualMachineInstanceVCPUChange:                        byController,
	v1.VirtualMachineInstanceMemoryChange:                      byController,
	v1.VirtualMachineInstanceVolumesChange:                     byController,
	v1.VirtualMachineInstanceMigrationRequired:                 byController,
	v1.VirtualMachineInstanceEvictionRequested:                 byController,
	v1.VirtualMachineInstanceNodeUnresponsive:                  byController,
	v1.VirtualMachineInstanceDecentralizedLiveMigrationFailure: byController,

	v1.VirtualMachineInstanceIsMigratable:                  byHandler,
	v1.VirtualMachineInstanceIsStorageLiveMigratable:       byHandler,
	v1.VirtualMachineInstanceAgentConnected:                byHandler,
	v1.VirtualMachineInstanceUnsupportedAgent:              byHandler,
	v1.VirtualMachineInstanceAccessCredentialsSynchronized: byHandler,
	v1.VirtualMachineInstancePaused:                        byHandler,
	v1.VirtualMachineInstanceSoftwareEmulation:             byHandler,
}
