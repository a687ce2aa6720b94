// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachineInstanceMigrationState is a migration of a guest.
// +k8s:openapi-gen=true
type VirtualMachineInstanceMigrationState struct {
	// startTimestamp is when the transfer started.
	// +nullable
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// endTimestamp is when it finished.
	// +nullable
	EndTimestamp *metav1.Time `json:"endTimestamp,omitempty"`
	// targetNodeDomainReadyTimestamp is when the guest ran on the target node.
	TargetNodeDomainReadyTimestamp *metav1.Time `json:"targetNodeDomainReadyTimestamp,omitempty"`
	// targetNodeDomainDetected is true if the target observes the guest.
	TargetNodeDomainDetected bool `json:"targetNodeDomainDetected,omitempty"`
	// targetNodeAddress is where the target node listens.
	TargetNodeAddress string `json:"targetNodeAddress,omitempty"`
	// targetDirectMigrationNodePorts maps ports of the target node to ports of the guest's transfer.
	TargetDirectMigrationNodePorts map[string]int `json:"targetDirectMigrationNodePorts,omitempty"`
	// targetNode is the target node.
	TargetNode string `json:"targetNode,omitempty"`
	// targetPod is the target's launcher Pod.
	TargetPod string `json:"targetPod,omitempty"`
	// targetAttachmentPodUID is the Pod that attaches hotplugged volumes on the target node. Not set: each volume has a
	// Pod of its own, which hotplugVolume of its status names.
	TargetAttachmentPodUID types.UID `json:"targetAttachmentPodUID,omitempty"`
	// sourceNode is the source node.
	SourceNode string `json:"sourceNode,omitempty"`
	// sourcePod is the source's launcher Pod.
	SourcePod string `json:"sourcePod,omitempty"`
	// completed is true once it has finished.
	Completed bool `json:"completed,omitempty"`
	// failed is true if the guest stayed on the source.
	Failed bool `json:"failed,omitempty"`
	// abortRequested is true if its abort was requested.
	AbortRequested bool `json:"abortRequested,omitempty"`
	// abortStatus is the result of the abort.
	AbortStatus MigrationAbortStatus `json:"abortStatus,omitempty"`
	// failureReason is why it failed.
	FailureReason string `json:"failureReason,omitempty"`
	// migrationUid is the UID of the VirtualMachineInstanceMigration.
	MigrationUID types.UID `json:"migrationUid,omitempty"`
	// mode is PreCopy, PostCopy or Paused.
	Mode MigrationMode `json:"mode,omitempty"`
	// migrationPolicyName names the policy that applies.
	MigrationPolicyName *string `json:"migrationPolicyName,omitempty"`
	// migrationConfiguration are the settings that apply.
	VMIMConfigurationOptions *VMIMConfigurationOptions `json:"migrationConfiguration,omitempty"`
	// targetCPUSet are the dedicated CPUs on the target node.
	// +listType=atomic
	TargetCPUSet []int `json:"targetCPUSet,omitempty"`
	// targetNodeTopology is the target node's topology as JSON.
	TargetNodeTopology string `json:"targetNodeTopology,omitempty"`
	// sourcePersistentStatePVCName is the claim with TPM and EFI state on the source.
	SourcePersistentStatePVCName string `json:"sourcePersistentStatePVCName,omitempty"`
	// targetPersistentStatePVCName is the claim with TPM and EFI state on the target.
	TargetPersistentStatePVCName string `json:"targetPersistentStatePVCName,omitempty"`
	// sourceState is what the source node's agent reports.
	SourceState *VirtualMachineInstanceMigrationSourceState `json:"sourceState,omitempty"`
	// targetState is what the target node's agent reports.
	TargetState *VirtualMachineInstanceMigrationTargetState `json:"targetState,omitempty"`
	// migrationNetworkType is Pod or Migration.
	MigrationNetworkType MigrationNetworkType `json:"migrationNetworkType,omitempty"`
	// targetMemoryOverhead is the memory overhead of the target's launcher Pod.
	// +optional
	TargetMemoryOverhead *resource.Quantity `json:"targetMemoryOverhead,omitempty"`
}

// VirtualMachineInstanceCommonMigrationState is what both sides of a migration report.
type VirtualMachineInstanceCommonMigrationState struct {
	// node is the node.
	Node string `json:"node,omitempty"`
	// pod is the launcher Pod.
	Pod string `json:"pod,omitempty"`
	// migrationUID is the UID of the VirtualMachineInstanceMigration.
	MigrationUID types.UID `json:"migrationUID,omitempty"`
	// domainName is the domain's name.
	DomainName *string `json:"domainName,omitempty"`
	// domainNamespace is the domain's namespace.
	DomainNamespace *string `json:"domainNamespace,omitempty"`
	// syncAddress is where this side can be reached from the other cluster.
	SyncAddress *string `json:"syncAddress,omitempty"`
	// persistentStatePVCName is the claim with TPM and EFI state.
	PersistentStatePVCName *string `json:"persistentStatePVCName,omitempty"`
	// selinuxContext is the SELinux context of the launcher.
	SelinuxContext string `json:"selinuxContext,omitempty"`
	// virtualMachineInstanceUID is the UID of the VMI on this side.
	VirtualMachineInstanceUID *types.UID `json:"virtualMachineInstanceUID,omitempty"`
}

// VirtualMachineInstanceMigrationSourceState is what the source of a migration reports.
// +k8s:openapi-gen=true
type VirtualMachineInstanceMigrationSourceState struct {
	VirtualMachineInstanceCommonMigrationState `json:",inline"`
	// nodeSelectors are labels that the target node must have.
	NodeSelectors map[string]string `json:"nodeSelectors,omitempty"`
}

// VirtualMachineInstanceMigrationTargetState is what the target of a migration reports.
// +k8s:openapi-gen=true
type VirtualMachineInstanceMigrationTargetState struct {
	VirtualMachineInstanceCommonMigrationState `json:",inline"`
	// domainReadyTimestamp is when the guest ran here.
	DomainReadyTimestamp *metav1.Time `json:"domainReadyTimestamp,omitempty"`
	// domainDetected is true if the guest is observed here.
	DomainDetected bool `json:"domainDetected,omitempty"`
	// nodeAddress is where the node listens.
	NodeAddress *string `json:"nodeAddress,omitempty"`
	// directMigrationNodePorts maps ports of the node to ports of the guest's transfer.
	DirectMigrationNodePorts map[string]int `json:"directMigrationNodePorts,omitempty"`
	// attachmentPodUID is the Pod that attaches hotplugged volumes.
	AttachmentPodUID *types.UID `json:"attachmentPodUID,omitempty"`
	// cpuSet are the dedicated CPUs.
	// +listType=atomic
	CPUSet []int `json:"cpuSet,omitempty"`
	// nodeTopology is the node's topology as JSON.
	NodeTopology *string `json:"nodeTopology,omitempty"`
}

// MigrationNetworkType is the network that a migration uses.
// +k8s:openapi-gen=true
type MigrationNetworkType string

// Values of MigrationNetworkType.
const (
	// Pod is the network of Pods.
	Pod MigrationNetworkType = "Pod"
	// Migration is a network of its own.
	Migration MigrationNetworkType = "Migration"
)

// MigrationAbortStatus is the result of an abort.
type MigrationAbortStatus string

// Values of MigrationAbortStatus.
const (
	// MigrationAbortSucceeded: it was stopped.
	MigrationAbortSucceeded MigrationAbortStatus = "Succeeded"
	// MigrationAbortFailed: it could not be stopped.
	MigrationAbortFailed MigrationAbortStatus = "Failed"
	// MigrationAbortInProgress: it is being stopped.
	MigrationAbortInProgress MigrationAbortStatus = "Aborting"
)

// MigrationMode is how memory is transferred.
type MigrationMode string

// Values of MigrationMode.
const (
	// MigrationPreCopy transfers memory while the guest runs on the source node.
	MigrationPreCopy MigrationMode = "PreCopy"
	// MigrationPostCopy transfers the rest while the guest runs on the target node.
	MigrationPostCopy MigrationMode = "PostCopy"
	// MigrationPaused transfers the rest while the guest is paused.
	MigrationPaused MigrationMode = "Paused"
)

// VirtualMachineInstanceMigrationTransport is how the launchers reach each other.
type VirtualMachineInstanceMigrationTransport string

// Values of VirtualMachineInstanceMigrationTransport.
const (
	// MigrationTransportUnix is over unix sockets.
	MigrationTransportUnix VirtualMachineInstanceMigrationTransport = "Unix"
)

// VirtualMachineInstanceMigrationMethod defines whether a migration copies disks.
type VirtualMachineInstanceMigrationMethod string

// Values of VirtualMachineInstanceMigrationMethod.
const (
	// BlockMigration copies disks and memory.
	BlockMigration VirtualMachineInstanceMigrationMethod = "BlockMigration"
	// LiveMigration transfers memory only.
	LiveMigration VirtualMachineInstanceMigrationMethod = "LiveMigration"
)
