// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// Reasons of the VMI conditions Ready and PodScheduled.
const (
	// PodTerminatingReason: the launcher Pod is being deleted.
	PodTerminatingReason = "PodTerminating"
	// PodNotExistsReason: there is no launcher Pod.
	PodNotExistsReason = "PodNotExists"
	// PodConditionMissingReason: the launcher Pod has no Ready condition yet.
	PodConditionMissingReason = "PodConditionMissing"
	// GuestNotRunningReason: the launcher Pod runs, the guest does not.
	GuestNotRunningReason = "GuestNotRunning"
)

// Reasons of the VMI condition Paused.
const (
	// PausedByUserReason: the pause was requested.
	PausedByUserReason = "PausedByUser"
	// PausedIOErrorReason: a disk failed to read or write and the guest was stopped.
	PausedIOErrorReason = "PausedIOError"
	// PausedByMigrationMonitorReason: a migration paused the guest.
	PausedByMigrationMonitorReason = "PausedByMigrationMonitor"
	// PausedAPIErrorReason: libvirt could not resume the guest after a migration, a dump or a snapshot.
	PausedAPIErrorReason = "PausedAPIError"
	// PausedWatchdogReason: the guest's watchdog paused it.
	PausedWatchdogReason = "PausedWatchdog"
	// PausedCrashedReason: the guest crashed.
	PausedCrashedReason = "PausedCrashed"
	// PausedPostcopyFailedReason: a post-copy failed, and the guest lacks a part of its memory.
	PausedPostcopyFailedReason = "PausedPostcopyFailed"
	// PausedUnknownReason: QEMU stopped the guest for a reason that libvirt does not report, such as an internal error of
	// KVM.
	PausedUnknownReason = "PausedUnknown"
)

// Reasons of the VMI condition LiveMigratable when it is False.
const (
	// VirtualMachineInstanceReasonDisksNotMigratable: a disk cannot be reached from two nodes.
	VirtualMachineInstanceReasonDisksNotMigratable = "DisksNotLiveMigratable"
	// VirtualMachineInstanceReasonInterfaceNotMigratable: a network interface cannot move.
	VirtualMachineInstanceReasonInterfaceNotMigratable = "InterfaceNotLiveMigratable"
	// VirtualMachineInstanceReasonHotplugNotMigratable: a hotplugged volume cannot move.
	VirtualMachineInstanceReasonHotplugNotMigratable = "HotplugNotLiveMigratable"
	// VirtualMachineInstanceReasonCPUModeNotMigratable: the CPU model ties the guest to its node.
	VirtualMachineInstanceReasonCPUModeNotMigratable = "CPUModeLiveMigratable"
	// VirtualMachineInstanceReasonVirtIOFSNotMigratable: a shared filesystem cannot move.
	VirtualMachineInstanceReasonVirtIOFSNotMigratable = "VirtIOFSNotLiveMigratable"
	// VirtualMachineInstanceReasonHostDeviceNotMigratable: a device of the node is passed through.
	VirtualMachineInstanceReasonHostDeviceNotMigratable = "HostDeviceNotLiveMigratable"
	// VirtualMachineInstanceReasonSEVNotMigratable: memory is encrypted by AMD SEV.
	VirtualMachineInstanceReasonSEVNotMigratable = "SEVNotLiveMigratable"
	// VirtualMachineInstanceReasonSecureExecutionNotMigratable: the guest runs under IBM Secure Execution.
	VirtualMachineInstanceReasonSecureExecutionNotMigratable = "SecureExecutionNotLiveMigratable"
	// VirtualMachineInstanceReasonTDXNotMigratable: memory is encrypted by Intel TDX.
	VirtualMachineInstanceReasonTDXNotMigratable = "TDXNotLiveMigratable"
	// VirtualMachineInstanceReasonNoTSCFrequencyMigratable: no common time stamp counter frequency is known.
	VirtualMachineInstanceReasonNoTSCFrequencyMigratable = "NoTSCFrequencyNotLiveMigratable"
	// VirtualMachineInstanceReasonHypervPassthroughNotMigratable: every Hyper-V feature of the node is passed through.
	VirtualMachineInstanceReasonHypervPassthroughNotMigratable = "HypervPassthroughNotLiveMigratable" //nolint:gosec // G101: a word, no credential
	// VirtualMachineInstanceReasonPRNotMigratable: a disk uses SCSI persistent reservations.
	VirtualMachineInstanceReasonPRNotMigratable = "PersistentReservationNotLiveMigratable"
	// VirtualMachineInstanceReasonDecentralizedNotMigratable: it cannot migrate to another namespace or cluster, the
	// message explains why.
	VirtualMachineInstanceReasonDecentralizedNotMigratable = "DecentralizedNotLiveMigratable"
	// VirtualMachineInstanceReasonNotMigratable: none of the others, the message explains why.
	VirtualMachineInstanceReasonNotMigratable = "NotMigratable"
)

// Reason of the VMI condition VolumesChange.
const (
	// VirtualMachineInstanceReasonVolumesChangeCancellation: the change of volumes was taken back.
	VirtualMachineInstanceReasonVolumesChangeCancellation = "VolumesChangeCancellation"
)

// Reasons of the VMI condition MigrationRequired.
const (
	// VirtualMachineInstanceReasonAutoMigrationDueToLiveUpdate: a change of the VM takes effect by a migration.
	VirtualMachineInstanceReasonAutoMigrationDueToLiveUpdate = "AutoMigrationDueToLiveUpdate"
	// VirtualMachineInstanceReasonAutoMigrationPending: that migration waits.
	VirtualMachineInstanceReasonAutoMigrationPending = "AutoMigrationPending"
	// VirtualMachineInstanceReasonRestartRequired: the guest does not migrate, so the change takes effect when the VM is
	// restarted.
	VirtualMachineInstanceReasonRestartRequired = "RestartRequired"
)

// Reason of the VMI condition EvictionRequested.
const (
	// VirtualMachineInstanceReasonEvictionRequested: the launcher Pod was evicted.
	VirtualMachineInstanceReasonEvictionRequested = "EvictionRequested"
)

// Reason of the VMI condition MachineTypeReplaced.
const (
	// VirtualMachineInstanceReasonMachineTypeOfOtherBuild: only another build of QEMU has the machine type of the spec.
	VirtualMachineInstanceReasonMachineTypeOfOtherBuild = "MachineTypeOfOtherBuild"
)

// Reasons of the VMI condition NodeUnresponsive.
const (
	// VirtualMachineInstanceReasonAgentSilent: the node's kubelet responds, so the guest most likely runs.
	VirtualMachineInstanceReasonAgentSilent = "AgentSilent"
	// VirtualMachineInstanceReasonNodeLost: nothing on the node responds. The guest may still run.
	VirtualMachineInstanceReasonNodeLost = "NodeLost"
	// VirtualMachineInstanceReasonNodeOutOfService: the node was declared out of service. Its launcher Pod is removed.
	VirtualMachineInstanceReasonNodeOutOfService = "NodeOutOfService"
)

// Reasons of the VMI condition Synchronized when volumes of type containerPath keep it from starting.
const (
	// ContainerPathVolumesDisabledReason: the feature gate for them is off.
	ContainerPathVolumesDisabledReason = "ContainerPathVolumesDisabled"
	// MissingVirtiofsContainersReason: the launcher Pod lacks the containers that serve them.
	MissingVirtiofsContainersReason = "MissingVirtiofsContainers"
)

// Reasons of the VMI condition DataVolumesReady.
const (
	// VirtualMachineInstanceReasonNotAllDVsReady: at least one DataVolume is not populated yet.
	VirtualMachineInstanceReasonNotAllDVsReady = "NotAllDVsReady"
	// VirtualMachineInstanceReasonAllDVsReady: every DataVolume is populated.
	VirtualMachineInstanceReasonAllDVsReady = "AllDVsReady"
)

// Reasons of the KubeVirt conditions.
const (
	// KubeVirtReasonAllComponentsReady: what was installed runs.
	KubeVirtReasonAllComponentsReady = "AllComponentsReady"
	// KubeVirtReasonAllResourcesCreated: every object was created.
	KubeVirtReasonAllResourcesCreated = "AllResourcesCreated"
	// KubeVirtReasonDeploymentInProgress: the first installation is not finished.
	KubeVirtReasonDeploymentInProgress = "DeploymentInProgress"
	// KubeVirtReasonUpdateInProgress: a change is being rolled out.
	KubeVirtReasonUpdateInProgress = "UpdateInProgress"
	// KubeVirtReasonDeploymentFailed: an object could not be applied, the message explains which and why.
	KubeVirtReasonDeploymentFailed = "DeploymentFailed"
	// KubeVirtReasonExistingDeployment: another KubeVirt object is in charge.
	KubeVirtReasonExistingDeployment = "ExistingDeployment"
	// KubeVirtReasonDeletionInProgress: what was installed is being removed.
	KubeVirtReasonDeletionInProgress = "DeletionInProgress"
	// KubeVirtReasonDeletionFailed: the removal failed, the message explains why.
	KubeVirtReasonDeletionFailed = "DeletionFailed"
)

// VirtualMachineInstancePodScheduled is copied from the launcher Pod while the scheduler finds no node for it.
const VirtualMachineInstancePodScheduled VirtualMachineInstanceConditionType = "PodScheduled"

// SyncEvent is the reason of an event about a VMI that its agent writes.
type SyncEvent string

// Values of SyncEvent.
const (
	// Created: the guest was defined.
	Created SyncEvent = "Created"
	// Deleted: the guest is gone.
	Deleted SyncEvent = "Deleted"
	// PresetFailed: a preset could not be merged.
	PresetFailed SyncEvent = "PresetFailed"
	// Override: a preset has another value than the VMI, which takes precedence.
	Override SyncEvent = "Override"
	// Started: the guest runs.
	Started SyncEvent = "Started"
	// ShuttingDown: the guest was requested to shut down.
	ShuttingDown SyncEvent = "ShuttingDown"
	// Stopped: the guest does not run anymore.
	Stopped SyncEvent = "Stopped"
	// PreparingTarget: the target is being prepared.
	PreparingTarget SyncEvent = "PreparingTarget"
	// Migrating: the transfer is running.
	Migrating SyncEvent = "Migrating"
	// Migrated: the guest runs on another node.
	Migrated SyncEvent = "Migrated"
	// SyncFailed: the guest could not be changed to match the spec.
	SyncFailed SyncEvent = "SyncFailed"
	// Resumed: the guest's CPUs run again.
	Resumed SyncEvent = "Resumed"
	// AccessCredentialsSyncFailed: keys or passwords could not be put into the guest.
	AccessCredentialsSyncFailed SyncEvent = "AccessCredentialsSyncFailed"
	// AccessCredentialsSyncSuccess: keys and passwords are in the guest.
	AccessCredentialsSyncSuccess SyncEvent = "AccessCredentialsSyncSuccess"
)

// String is the reason as an event contains it.
func (e SyncEvent) String() string { return string(e) }
