// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package vmistatus has the only code that patches the status of a VirtualMachineInstance. Two processes write that
// status: virt-controller until the launcher Pod is assigned and again once it has finished, the node's agent in
// between. At any time each field has exactly one writer, by the tables of ownership.go; Patch refuses changes of other
// fields.
package vmistatus

import (
	"slices"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Writer is a process that writes the status of VMIs.
type Writer string

// The writers. The agents of a migration's two nodes are writers of their own: they share status.migrationState, and
// the target's agent writes nothing else until it owns the guest.
const (
	// Controller is virt-controller.
	Controller Writer = "virt-controller"
	// Handler is virt-handler, the agent of the guest's node.
	Handler Writer = "virt-handler"
	// MigrationSource is the agent of the migration's source node.
	MigrationSource Writer = "virt-handler of the migration's source"
	// MigrationTarget is the agent of the migration's target node.
	MigrationTarget Writer = "virt-handler of the migration's target"
)

// Stage is the part of a VMI's life on which the writer of some fields depends.
type Stage int

// The stages, in the order in which a VMI passes them.
const (
	// Preparing lasts until the launcher Pod is assigned: there is no Pod yet, or it does not run.
	Preparing Stage = iota
	// Live lasts from the assignment until virt-controller has written a final phase.
	Live
	// Ended starts with the final phase.
	Ended
)

// StageOf returns the stage of a phase. Unknown is Live: a guest whose state is unknown has not ended.
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

// InCharge returns the writer of the phase of a VMI. virt-controller has one more right: to end a Live VMI whose
// launcher Pod is finished or gone.
func InCharge(status *v1.VirtualMachineInstanceStatus) Writer {
	return fieldOwners["phase"].at(StageOf(status.Phase))
}

// owners are the writers of a field in each stage.
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
	// byController is for facts about the Pod, claims and requests of users.
	byController = owners{Controller, Controller, Controller}
	// byHandler is for what only the hypervisor or the guest know.
	byHandler = owners{Handler, Handler, Handler}
	// byHandlerWhileLive is for what the agent knows better while a guest may run.
	byHandlerWhileLive = owners{Controller, Handler, Controller}
)

// fieldOwners is the table of writers by the JSON name of the status field. Conditions are in conditionOwners.
var fieldOwners = map[string]owners{
	// virt-controller sets the phases up to Scheduled and the final ones, the agent those of a running guest.
	"phase": byHandlerWhileLive,
	// Stamps are written together with their phase.
	"phaseTransitionTimestamps": byHandlerWhileLive,
	// The reason why the VMI waits or ended. The agent sets conditions instead.
	"reason": byController,
	// Targets and sizes are read from the running domain. Claims are in claimOwners, attachment Pods in attachmentOwners,
	// the phases of hotplugged volumes in volumePhaseOwners.
	"volumeStatus": byHandlerWhileLive,

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
	"snapshotFreeze":                byController,
	"diskBackup":                    byController,

	"interfaces":           byHandler,
	"guestOSInfo":          byHandler,
	"memory":               byHandler,
	"machine":              byHandler,
	"currentCPUTopology":   byHandler,
	"migrationMethod":      byHandler,
	"kernelBootStatus":     byHandler,
	"fsFreezeStatus":       byHandler,
	"snapshotFreezeRecord": byHandler,
	"diskBackupRecord":     byHandler,
	"trackedVolumes":       byHandler,
	"selinuxContext":       byHandler,
}

// conditionsField, migrationField and volumesField are the fields whose parts have different writers: see
// conditionOwners, migrationOwners and claimOwners.
const (
	conditionsField = "conditions"
	migrationField  = "migrationState"
	volumesField    = "volumeStatus"
	claimsField     = "volumeStatus.persistentVolumeClaimInfo"
	attachmentField = "volumeStatus.hotplugVolume"
	volumePhase     = "volumeStatus.phase"
)

// claimOwners are the writers of what a volume's status has about its claim. Only virt-controller reads claims, which
// can grow while a guest runs.
var claimOwners = byController

// attachmentOwners are the writers of which Pod attaches a hotplugged volume to the node. Its writer also adds the
// volume to the list and takes it off.
var attachmentOwners = byController

// volumePhaseOwners is the table of who may set each phase of a hotplugged volume of a Live VMI, with its reason and
// message. hotplugNext lists the transitions. While the agent mounts a volume, it also owns the reason and the message
// of virt-controller's phase: see isMounting.
var volumePhaseOwners = map[v1.VolumePhase]Writer{
	"":                             Controller,
	v1.VolumePending:               Controller,
	v1.VolumeBound:                 Controller,
	v1.HotplugVolumeAttachedToNode: Controller,
	v1.HotplugVolumeMounted:        Handler,
	v1.VolumeReady:                 Handler,
	v1.MemoryDumpVolumeInProgress:  Handler,
	v1.MemoryDumpVolumeCompleted:   Handler,
	v1.MemoryDumpVolumeFailed:      Handler,
	v1.HotplugVolumeUnMounted:      Handler,
	v1.HotplugVolumeDetaching:      Controller,
}

// conditionOwners is the table of writers by condition type.
var conditionOwners = map[v1.VirtualMachineInstanceConditionType]owners{
	// Readiness follows from the Pod before it is assigned, then from the guest, and is False at the end. See ownersOf for
	// a lost node.
	v1.VirtualMachineInstanceReady: byHandlerWhileLive,
	// False while the writer cannot do what the spec demands.
	v1.VirtualMachineInstanceSynchronized: byHandlerWhileLive,

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
	v1.VirtualMachineInstanceMachineTypeReplaced:           byHandler,
	v1.VirtualMachineInstanceSoftwareEmulation:             byHandler,
}

// infoSourceDomain is the element of infoSource of an interface that the domain has. Source: kubevirt/kubevirt
// pkg/network/vmispec/infosource.go
const infoSourceDomain = "domain"

// HasInterface reports whether a running guest has an interface of the spec, according to its agent.
func HasInterface(status *v1.VirtualMachineInstanceStatus, name string) bool {
	return slices.ContainsFunc(status.Interfaces, func(i v1.VirtualMachineInstanceNetworkInterface) bool {
		return i.Name == name && slices.Contains(strings.Split(i.InfoSource, ", "), infoSourceDomain)
	})
}
