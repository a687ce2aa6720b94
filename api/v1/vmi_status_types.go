// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachineInstanceStatus is the observed state of a VMI. The table in internal/vmistatus names the writer of each
// field.
type VirtualMachineInstanceStatus struct {
	// nodeName is the node that runs the guest. Set by virt-controller when it assigns the Pod to the agent.
	NodeName string `json:"nodeName,omitempty"`
	// reason is the reason for the phase in one word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// conditions are the conditions of the VMI.
	Conditions []VirtualMachineInstanceCondition `json:"conditions,omitempty"`
	// phase is the phase of the run: Pending, Scheduling, Scheduled, Running, Succeeded, Failed, Unknown or
	// WaitingForSync.
	Phase VirtualMachineInstancePhase `json:"phase,omitempty"`
	// phaseTransitionTimestamps are when each phase started.
	// +listType=atomic
	// +optional
	PhaseTransitionTimestamps []VirtualMachineInstancePhaseTransitionTimestamp `json:"phaseTransitionTimestamps,omitempty"`
	// interfaces are the guest's network interfaces. Set by the agent.
	Interfaces []VirtualMachineInstanceNetworkInterface `json:"interfaces,omitempty"`
	// guestOSInfo is what the guest agent reports about the operating system. Set by the agent. As in KubeVirt, it is
	// never missing: clients read its fields without checking that it exists.
	// +kubebuilder:default={}
	GuestOSInfo VirtualMachineInstanceGuestOSInfo `json:"guestOSInfo,omitempty"`
	// migrationState is the migration that is running or was the last.
	MigrationState *VirtualMachineInstanceMigrationState `json:"migrationState,omitempty"`
	// migrationMethod defines whether a migration copies disks. Set by the agent.
	MigrationMethod VirtualMachineInstanceMigrationMethod `json:"migrationMethod,omitempty"`
	// migrationTransport is Unix. Set by virt-controller.
	MigrationTransport VirtualMachineInstanceMigrationTransport `json:"migrationTransport,omitempty"`
	// qosClass is the quality of service class of the launcher Pod.
	// +optional
	QOSClass *corev1.PodQOSClass `json:"qosClass,omitempty"`
	// launcherContainerImageVersion is the image of the launcher Pod.
	LauncherContainerImageVersion string `json:"launcherContainerImageVersion,omitempty"`
	// evacuationNodeName is the node from which the guest is being evacuated.
	// +optional
	EvacuationNodeName string `json:"evacuationNodeName,omitempty"`
	// activePods maps the UID of each launcher Pod to its node.
	ActivePods map[types.UID]string `json:"activePods,omitempty"`
	// volumeStatus is the state of each volume.
	// +optional
	// +listType=atomic
	VolumeStatus []VolumeStatus `json:"volumeStatus,omitempty"`
	// kernelBootStatus reports the kernel and initrd that were booted. Set by the agent.
	// +optional
	KernelBootStatus *KernelBootStatus `json:"kernelBootStatus,omitempty"`
	// fsFreezeStatus is "frozen" while the guest's file systems are. Set by the agent.
	// +optional
	FSFreezeStatus string `json:"fsFreezeStatus,omitempty"`
	// snapshotFreeze requests that the guest's file systems be frozen for a VirtualMachineSnapshot or a
	// VirtualMachineBackup. Set by virt-controller.
	// +optional
	SnapshotFreeze *SnapshotFreeze `json:"snapshotFreeze,omitempty"`
	// snapshotFreezeRecord is what the agent has done for the last such request. Set by the agent.
	// +optional
	SnapshotFreezeRecord *SnapshotFreezeRecord `json:"snapshotFreezeRecord,omitempty"`
	// diskBackup requests a backup of the guest's disks. Set by virt-controller; KubeVirt calls the subresource backup
	// instead.
	// +optional
	DiskBackup *DiskBackup `json:"diskBackup,omitempty"`
	// diskBackupRecord is what the agent has done for the last such request. Set by the agent.
	// +optional
	DiskBackupRecord *DiskBackupRecord `json:"diskBackupRecord,omitempty"`
	// trackedVolumes are the names of the volumes whose disks have an overlay with which QEMU can track changed blocks, as
	// long as it runs. Set by the agent.
	// +listType=atomic
	// +optional
	TrackedVolumes []string `json:"trackedVolumes,omitempty"`
	// topologyHints are what a node must offer for a migration.
	// +optional
	TopologyHints *TopologyHints `json:"topologyHints,omitempty"`
	// virtualMachineRevisionName names the ControllerRevision with the VM's spec at the start.
	// +optional
	VirtualMachineRevisionName string `json:"virtualMachineRevisionName,omitempty"`
	// runtimeUser is the user ID of the launcher, 107. It is never missing, either: it is 0 before there is a launcher
	// Pod.
	// +kubebuilder:default=0
	// +optional
	RuntimeUser uint64 `json:"runtimeUser"`
	// VSOCKCID is the guest's address on VSOCK.
	// +optional
	// +kubebuilder:validation:Format:=int64
	// +kubebuilder:validation:Minimum:=0
	// +kubebuilder:validation:Maximum:=4294967295
	VSOCKCID *uint32 `json:"VSOCKCID,omitempty"`
	// selinuxContext is the SELinux context of the launcher.
	// +optional
	SelinuxContext string `json:"selinuxContext,omitempty"`
	// machine is the machine type that runs, with its version. Set by the agent.
	// +optional
	Machine *Machine `json:"machine,omitempty"`
	// currentCPUTopology is the CPU topology that runs. Set by the agent.
	CurrentCPUTopology *CPUTopology `json:"currentCPUTopology,omitempty"`
	// memory is the guest's memory at boot, now and as requested. Set by the agent.
	// +optional
	Memory *MemoryStatus `json:"memory,omitempty"`
	// migratedVolumes are volumes that a migration copies.
	// +listType=atomic
	// +optional
	MigratedVolumes []StorageMigratedVolumeInfo `json:"migratedVolumes,omitempty"`
	// changedBlockTracking reports whether changed blocks are tracked.
	// +nullable
	// +optional
	ChangedBlockTracking *ChangedBlockTrackingStatus `json:"changedBlockTracking,omitempty"`
}

// VirtualMachineInstancePhase is the phase of the run of a VMI.
type VirtualMachineInstancePhase string

// Values of VirtualMachineInstancePhase.
const (
	// VmPhaseUnset is a VMI that was written without the schema's default.
	VmPhaseUnset VirtualMachineInstancePhase = ""
	// Pending: there is no launcher Pod yet.
	Pending VirtualMachineInstancePhase = "Pending"
	// Scheduling: there is a launcher Pod that does not run yet.
	Scheduling VirtualMachineInstancePhase = "Scheduling"
	// Scheduled: the launcher Pod runs and is assigned to the agent.
	Scheduled VirtualMachineInstancePhase = "Scheduled"
	// Running: the guest runs.
	Running VirtualMachineInstancePhase = "Running"
	// Succeeded: the guest shut itself down, or was shut down on request.
	Succeeded VirtualMachineInstancePhase = "Succeeded"
	// Failed: the guest crashed or never ran; see the reason and the conditions.
	Failed VirtualMachineInstancePhase = "Failed"
	// WaitingForSync: it waits for the other side of a migration between clusters.
	WaitingForSync VirtualMachineInstancePhase = "WaitingForSync"
	// Unknown: its node does not respond. The guest may still run.
	Unknown VirtualMachineInstancePhase = "Unknown"
)

// VirtualMachineInstancePhaseTransitionTimestamp is when a phase started.
type VirtualMachineInstancePhaseTransitionTimestamp struct {
	// phase is the phase.
	Phase VirtualMachineInstancePhase `json:"phase,omitempty"`
	// phaseTransitionTimestamp is when it started.
	PhaseTransitionTimestamp metav1.Time `json:"phaseTransitionTimestamp,omitempty"`
}

// VirtualMachineInstanceCondition is a condition of a VMI.
type VirtualMachineInstanceCondition struct {
	// type is the condition's type.
	Type VirtualMachineInstanceConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastProbeTime is when the condition was last checked.
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// lastTransitionTime is when status last changed.
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// reason is the reason in one word, for programs.
	Reason string `json:"reason,omitempty"`
	// message is the explanation for people.
	Message string `json:"message,omitempty"`
}

// VirtualMachineInstanceConditionType is a type of condition of a VMI.
type VirtualMachineInstanceConditionType string

// Values of VirtualMachineInstanceConditionType.
const (
	// VirtualMachineInstanceProvisioning: a Pod that only makes volumes bind is running.
	VirtualMachineInstanceProvisioning VirtualMachineInstanceConditionType = "Provisioning"
	// VirtualMachineInstanceReady: the guest runs and its Pod is ready.
	VirtualMachineInstanceReady VirtualMachineInstanceConditionType = "Ready"
	// VirtualMachineInstanceSynchronized is False while something cannot be applied; the message explains what.
	VirtualMachineInstanceSynchronized VirtualMachineInstanceConditionType = "Synchronized"
	// VirtualMachineInstancePaused: the guest's CPUs are stopped; the reason explains why.
	VirtualMachineInstancePaused VirtualMachineInstanceConditionType = "Paused"
	// VirtualMachineInstanceAgentConnected: the QEMU guest agent responds.
	VirtualMachineInstanceAgentConnected VirtualMachineInstanceConditionType = "AgentConnected"
	// VirtualMachineInstanceAccessCredentialsSynchronized: keys and passwords are in the guest.
	VirtualMachineInstanceAccessCredentialsSynchronized VirtualMachineInstanceConditionType = "AccessCredentialsSynchronized"
	// VirtualMachineInstanceUnsupportedAgent: the guest agent's version lacks commands that are needed.
	VirtualMachineInstanceUnsupportedAgent VirtualMachineInstanceConditionType = "AgentVersionNotSupported"
	// VirtualMachineInstanceIsMigratable: the guest can migrate to another node; if False, see the reason.
	VirtualMachineInstanceIsMigratable VirtualMachineInstanceConditionType = "LiveMigratable"
	// VirtualMachineInstanceVCPUChange: a change of the number of CPUs is not yet applied to the guest.
	VirtualMachineInstanceVCPUChange VirtualMachineInstanceConditionType = "HotVCPUChange"
	// VirtualMachineInstanceMemoryChange: a change of memory is not yet applied to the guest.
	VirtualMachineInstanceMemoryChange VirtualMachineInstanceConditionType = "HotMemoryChange"
	// VirtualMachineInstanceVolumesChange: volumes are being copied.
	VirtualMachineInstanceVolumesChange VirtualMachineInstanceConditionType = "VolumesChange"
	// VirtualMachineInstanceDataVolumesReady: every DataVolume is populated.
	VirtualMachineInstanceDataVolumesReady VirtualMachineInstanceConditionType = "DataVolumesReady"
	// VirtualMachineInstanceIsStorageLiveMigratable: the guest can migrate if its disks are copied.
	VirtualMachineInstanceIsStorageLiveMigratable VirtualMachineInstanceConditionType = "StorageLiveMigratable"
	// VirtualMachineInstanceDecentralizedLiveMigrationFailure: a migration between clusters failed.
	VirtualMachineInstanceDecentralizedLiveMigrationFailure VirtualMachineInstanceConditionType = "DecentralizedLiveMigrationFailure"
	// VirtualMachineInstanceMigrationRequired: a change is applied to the guest by a migration only.
	VirtualMachineInstanceMigrationRequired VirtualMachineInstanceConditionType = "MigrationRequired"
	// VirtualMachineInstanceEvictionRequested: an eviction was requested for the guest.
	VirtualMachineInstanceEvictionRequested VirtualMachineInstanceConditionType = "EvictionRequested"
	// VirtualMachineInstanceNodeUnresponsive: the agent of the guest's node does not respond. The message explains what is
	// known about the guest, what the VMI waits for and how it is released.
	VirtualMachineInstanceNodeUnresponsive VirtualMachineInstanceConditionType = "NodeUnresponsive"
	// VirtualMachineInstanceMachineTypeReplaced: the guest started with another machine type than its spec has, because
	// only another build of QEMU has that one.
	VirtualMachineInstanceMachineTypeReplaced VirtualMachineInstanceConditionType = "MachineTypeReplaced"
	// VirtualMachineInstanceSoftwareEmulation: the guest runs without KVM.
	VirtualMachineInstanceSoftwareEmulation VirtualMachineInstanceConditionType = "SoftwareEmulation"
)

// VirtualMachineInstanceNetworkInterface is a network interface of the guest. Set by the agent.
type VirtualMachineInstanceNetworkInterface struct {
	// ipAddress is the interface's first address.
	IP string `json:"ipAddress,omitempty"`
	// mac is its hardware address.
	MAC string `json:"mac,omitempty"`
	// name is its name in the spec; empty for one that only the guest knows.
	Name string `json:"name,omitempty"`
	// ipAddresses are all of its addresses.
	IPs []string `json:"ipAddresses,omitempty"`
	// podInterfaceName is the interface in the Pod that it is connected to.
	PodInterfaceName string `json:"podInterfaceName,omitempty"`
	// interfaceName is its name in the guest, by the guest agent.
	InterfaceName string `json:"interfaceName,omitempty"`
	// infoSource is the source of this information: domain, guest-agent, multus-status, separated by commas.
	InfoSource string `json:"infoSource,omitempty"`
	// queueCount is its number of queues.
	QueueCount int32 `json:"queueCount,omitempty"`
	// linkState is up or down.
	LinkState string `json:"linkState,omitempty"`
}

// VirtualMachineInstanceGuestOSInfo is what the guest agent reports about the operating system.
type VirtualMachineInstanceGuestOSInfo struct {
	// name is the system's name, such as Debian GNU/Linux.
	Name string `json:"name,omitempty"`
	// kernelRelease is the kernel's release.
	KernelRelease string `json:"kernelRelease,omitempty"`
	// version is the system's version with its code name.
	Version string `json:"version,omitempty"`
	// prettyName is name and version for people.
	PrettyName string `json:"prettyName,omitempty"`
	// versionId is the system's version as a number.
	VersionID string `json:"versionId,omitempty"`
	// kernelVersion is the kernel's version.
	KernelVersion string `json:"kernelVersion,omitempty"`
	// machine is the machine's architecture, such as x86_64.
	Machine string `json:"machine,omitempty"`
	// id is the system's identifier, such as debian.
	ID string `json:"id,omitempty"`
}

// MemoryStatus is the guest's memory.
type MemoryStatus struct {
	// guestAtBoot is what it had at boot.
	// +optional
	GuestAtBoot *resource.Quantity `json:"guestAtBoot,omitempty"`
	// guestCurrent is what it has now.
	// +optional
	GuestCurrent *resource.Quantity `json:"guestCurrent,omitempty"`
	// guestRequested is what was requested.
	// +optional
	GuestRequested *resource.Quantity `json:"guestRequested,omitempty"`
	// memoryOverhead is what the launcher Pod has beyond it.
	// +optional
	MemoryOverhead *resource.Quantity `json:"memoryOverhead,omitempty"`
}

// CPUTopology is a number of CPUs and how they are arranged.
type CPUTopology struct {
	// cores is the number of cores of a socket.
	Cores uint32 `json:"cores,omitempty"`
	// sockets is the number of sockets.
	Sockets uint32 `json:"sockets,omitempty"`
	// threads is the number of threads of a core.
	Threads uint32 `json:"threads,omitempty"`
}

// TopologyHints are what a node must offer for a migration.
type TopologyHints struct {
	// tscFrequency is the frequency of the time stamp counter in Hz.
	TSCFrequency *int64 `json:"tscFrequency,omitempty"`
}

// KernelBootStatus reports which kernel and initrd were booted.
type KernelBootStatus struct {
	// kernelInfo is the kernel.
	KernelInfo *KernelInfo `json:"kernelInfo,omitempty"`
	// initrdInfo is the initrd.
	InitrdInfo *InitrdInfo `json:"initrdInfo,omitempty"`
}

// KernelInfo identifies a kernel.
type KernelInfo struct {
	// checksum is its CRC-32.
	// +kubebuilder:validation:Format:=int64
	// +kubebuilder:validation:Minimum:=0
	// +kubebuilder:validation:Maximum:=4294967295
	Checksum uint32 `json:"checksum,omitempty"`
}

// InitrdInfo identifies an initrd.
type InitrdInfo struct {
	// checksum is its CRC-32.
	// +kubebuilder:validation:Format:=int64
	// +kubebuilder:validation:Minimum:=0
	// +kubebuilder:validation:Maximum:=4294967295
	Checksum uint32 `json:"checksum,omitempty"`
}
