// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type VirtualMachineInstanceStatus struct {
	NodeName string `json:"nodeName,omitempty"`
	// +optional
	Reason     string                            `json:"reason,omitempty"`
	Conditions []VirtualMachineInstanceCondition `json:"conditions,omitempty"`
	Phase      VirtualMachineInstancePhase       `json:"phase,omitempty"`
	// +listType=atomic
	// +optional
	PhaseTransitionTimestamps []VirtualMachineInstancePhaseTransitionTimestamp `json:"phaseTransitionTimestamps,omitempty"`
	Interfaces                []VirtualMachineInstanceNetworkInterface         `json:"interfaces,omitempty"`
	GuestOSInfo               VirtualMachineInstanceGuestOSInfo                `json:"guestOSInfo,omitempty"`
	MigrationState            *VirtualMachineInstanceMigrationState            `json:"migrationState,omitempty"`
	MigrationMethod           VirtualMachineInstanceMigrationMethod            `json:"migrationMethod,omitempty"`
	MigrationTransport        VirtualMachineInstanceMigrationTransport         `json:"migrationTransport,omitempty"`
	// +optional
	QOSClass                      *corev1.PodQOSClass `json:"qosClass,omitempty"`
	LauncherContainerImageVersion string              `json:"launcherContainerImageVersion,omitempty"`
	// +optional
	EvacuationNodeName string               `json:"evacuationNodeName,omitempty"`
	ActivePods         map[types.UID]string `json:"activePods,omitempty"`
	// +optional
	// +listType=atomic
	VolumeStatus []VolumeStatus `json:"volumeStatus,omitempty"`
	// +optional
	KernelBootStatus *KernelBootStatus `json:"kernelBootStatus,omitempty"`
	// +optional
	FSFreezeStatus string `json:"fsFreezeStatus,omitempty"`
	// +optional
	TopologyHints *TopologyHints `json:"topologyHints,omitempty"`
	// +optional
	VirtualMachineRevisionName string `json:"virtualMachineRevisionName,omitempty"`
	// +optional
	RuntimeUser uint64 `json:"runtimeUser"`
	// +optional
	// +kubebuilder:validation:Format:=int64
	// +kubebuilder:validation:Minimum:=0
	// +kubebuilder:validation:Maximum:=4294967295
	VSOCKCID *uint32 `json:"VSOCKCID,omitempty"`
	// +optional
	SelinuxContext string `json:"selinuxContext,omitempty"`
	// +optional
	Machine            *Machine     `json:"machine,omitempty"`
	CurrentCPUTopology *CPUTopology `json:"currentCPUTopology,omitempty"`
	// +optional
	Memory *MemoryStatus `json:"memory,omitempty"`
	// +listType=atomic
	// +optional
	MigratedVolumes []StorageMigratedVolumeInfo `json:"migratedVolumes,omitempty"`
	// +nullable
	// +optional
	ChangedBlockTracking *ChangedBlockTrackingStatus `json:"changedBlockTracking,omitempty"`
}

type VirtualMachineInstancePhase string

// Values of VirtualMachineInstancePhase.
const (
	VmPhaseUnset   VirtualMachineInstancePhase = ""
	Pending        VirtualMachineInstancePhase = "Pending"
	Scheduling     VirtualMachineInstancePhase = "Scheduling"
	Scheduled      VirtualMachineInstancePhase = "Scheduled"
	Running        VirtualMachineInstancePhase = "Running"
	Succeeded      VirtualMachineInstancePhase = "Succeeded"
	Failed         VirtualMachineInstancePhase = "Failed"
	WaitingForSync VirtualMachineInstancePhase = "WaitingForSync"
	Unknown        VirtualMachineInstancePhase = "Unknown"
)

type VirtualMachineInstancePhaseTransitionTimestamp struct {
	Phase                    VirtualMachineInstancePhase `json:"phase,omitempty"`
	PhaseTransitionTimestamp metav1.Time                 `json:"phaseTransitionTimestamp,omitempty"`
}

type VirtualMachineInstanceCondition struct {
	Type   VirtualMachineInstanceConditionType `json:"type"`
	Status corev1.ConditionStatus              `json:"status"`
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	Reason             string      `json:"reason,omitempty"`
	Message            string      `json:"message,omitempty"`
}

type VirtualMachineInstanceConditionType string

// Values of VirtualMachineInstanceConditionType.
const (
	VirtualMachineInstanceProvisioning                      VirtualMachineInstanceConditionType = "Provisioning"
	VirtualMachineInstanceReady                             VirtualMachineInstanceConditionType = "Ready"
	VirtualMachineInstanceSynchronized                      VirtualMachineInstanceConditionType = "Synchronized"
	VirtualMachineInstancePaused                            VirtualMachineInstanceConditionType = "Paused"
	VirtualMachineInstanceAgentConnected                    VirtualMachineInstanceConditionType = "AgentConnected"
	VirtualMachineInstanceAccessCredentialsSynchronized     VirtualMachineInstanceConditionType = "AccessCredentialsSynchronized"
	VirtualMachineInstanceUnsupportedAgent                  VirtualMachineInstanceConditionType = "AgentVersionNotSupported"
	VirtualMachineInstanceIsMigratable                      VirtualMachineInstanceConditionType = "LiveMigratable"
	VirtualMachineInstanceVCPUChange                        VirtualMachineInstanceConditionType = "HotVCPUChange"
	VirtualMachineInstanceMemoryChange                      VirtualMachineInstanceConditionType = "HotMemoryChange"
	VirtualMachineInstanceVolumesChange                     VirtualMachineInstanceConditionType = "VolumesChange"
	VirtualMachineInstanceDataVolumesReady                  VirtualMachineInstanceConditionType = "DataVolumesReady"
	VirtualMachineInstanceIsStorageLiveMigratable           VirtualMachineInstanceConditionType = "StorageLiveMigratable"
	VirtualMachineInstanceDecentralizedLiveMigrationFailure VirtualMachineInstanceConditionType = "DecentralizedLiveMigrationFailure"
	VirtualMachineInstanceMigrationRequired                 VirtualMachineInstanceConditionType = "MigrationRequired"
	VirtualMachineInstanceEvictionRequested                 VirtualMachineInstanceConditionType = "EvictionRequested"
	VirtualMachineInstanceSoftwareEmulation                 VirtualMachineInstanceConditionType = "SoftwareEmulation"
)

type VirtualMachineInstanceNetworkInterface struct {
	IP               string   `json:"ipAddress,omitempty"`
	MAC              string   `json:"mac,omitempty"`
	Name             string   `json:"name,omitempty"`
	IPs              []string `json:"ipAddresses,omitempty"`
	PodInterfaceName string   `json:"podInterfaceName,omitempty"`
	InterfaceName    string   `json:"interfaceName,omitempty"`
	InfoSource       string   `json:"infoSource,omitempty"`
	QueueCount       int32    `json:"queueCount,omitempty"`
	LinkState        string   `json:"linkState,omitempty"`
}

type VirtualMachineInstanceGuestOSInfo struct {
	Name          string `json:"name,omitempty"`
	KernelRelease string `json:"kernelRelease,omitempty"`
	Version       string `json:"version,omitempty"`
	PrettyName    string `json:"prettyName,omitempty"`
	VersionID     string `json:"versionId,omitempty"`
	KernelVersion string `json:"kernelVersion,omitempty"`
	Machine       string `json:"machine,omitempty"`
	ID            string `json:"id,omitempty"`
}

type MemoryStatus struct {
	// +optional
	GuestAtBoot *resource.Quantity `json:"guestAtBoot,omitempty"`
	// +optional
	GuestCurrent *resource.Quantity `json:"guestCurrent,omitempty"`
	// +optional
	GuestRequested *resource.Quantity `json:"guestRequested,omitempty"`
	// +optional
	MemoryOverhead *resource.Quantity `json:"memoryOverhead,omitempty"`
}

type CPUTopology struct {
	Cores   uint32 `json:"cores,omitempty"`
	Sockets uint32 `json:"sockets,omitempty"`
	Threads uint32 `json:"threads,omitempty"`
}

type TopologyHints struct {
	TSCFrequency *int64 `json:"tscFrequency,omitempty"`
}

type KernelBootStatus struct {
	KernelInfo *KernelInfo `json:"kernelInfo,omitempty"`
	InitrdInfo *InitrdInfo `json:"initrdInfo,omitempty"`
}

type KernelInfo struct {
	// +kubebuilder:validation:Format:=int64
	// +kubebuilder:validation:Minimum:=0
	// +kubebuilder:validation:Maximum:=4294967295
	Checksum uint32 `json:"checksum,omitempty"`
}

type InitrdInfo struct {
	// +kubebuilder:validation:Format:=int64
	// +kubebuilder:validation:Minimum:=0
	// +kubebuilder:validation:Maximum:=4294967295
	Checksum uint32 `json:"checksum,omitempty"`
}
