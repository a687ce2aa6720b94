// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +k8s:openapi-gen=true
type VirtualMachineInstanceMigrationState struct {
	// +nullable
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// +nullable
	EndTimestamp                   *metav1.Time              `json:"endTimestamp,omitempty"`
	TargetNodeDomainReadyTimestamp *metav1.Time              `json:"targetNodeDomainReadyTimestamp,omitempty"`
	TargetNodeDomainDetected       bool                      `json:"targetNodeDomainDetected,omitempty"`
	TargetNodeAddress              string                    `json:"targetNodeAddress,omitempty"`
	TargetDirectMigrationNodePorts map[string]int            `json:"targetDirectMigrationNodePorts,omitempty"`
	TargetNode                     string                    `json:"targetNode,omitempty"`
	TargetPod                      string                    `json:"targetPod,omitempty"`
	TargetAttachmentPodUID         types.UID                 `json:"targetAttachmentPodUID,omitempty"`
	SourceNode                     string                    `json:"sourceNode,omitempty"`
	SourcePod                      string                    `json:"sourcePod,omitempty"`
	Completed                      bool                      `json:"completed,omitempty"`
	Failed                         bool                      `json:"failed,omitempty"`
	AbortRequested                 bool                      `json:"abortRequested,omitempty"`
	AbortStatus                    MigrationAbortStatus      `json:"abortStatus,omitempty"`
	FailureReason                  string                    `json:"failureReason,omitempty"`
	MigrationUID                   types.UID                 `json:"migrationUid,omitempty"`
	Mode                           MigrationMode             `json:"mode,omitempty"`
	MigrationPolicyName            *string                   `json:"migrationPolicyName,omitempty"`
	VMIMConfigurationOptions       *VMIMConfigurationOptions `json:"migrationConfiguration,omitempty"`
	// +listType=atomic
	TargetCPUSet                 []int                                       `json:"targetCPUSet,omitempty"`
	TargetNodeTopology           string                                      `json:"targetNodeTopology,omitempty"`
	SourcePersistentStatePVCName string                                      `json:"sourcePersistentStatePVCName,omitempty"`
	TargetPersistentStatePVCName string                                      `json:"targetPersistentStatePVCName,omitempty"`
	SourceState                  *VirtualMachineInstanceMigrationSourceState `json:"sourceState,omitempty"`
	TargetState                  *VirtualMachineInstanceMigrationTargetState `json:"targetState,omitempty"`
	MigrationNetworkType         MigrationNetworkType                        `json:"migrationNetworkType,omitempty"`
	// +optional
	TargetMemoryOverhead *resource.Quantity `json:"targetMemoryOverhead,omitempty"`
}

type VirtualMachineInstanceCommonMigrationState struct {
	Node                      string     `json:"node,omitempty"`
	Pod                       string     `json:"pod,omitempty"`
	MigrationUID              types.UID  `json:"migrationUID,omitempty"`
	DomainName                *string    `json:"domainName,omitempty"`
	DomainNamespace           *string    `json:"domainNamespace,omitempty"`
	SyncAddress               *string    `json:"syncAddress,omitempty"`
	PersistentStatePVCName    *string    `json:"persistentStatePVCName,omitempty"`
	SelinuxContext            string     `json:"selinuxContext,omitempty"`
	VirtualMachineInstanceUID *types.UID `json:"virtualMachineInstanceUID,omitempty"`
}

// +k8s:openapi-gen=true
type VirtualMachineInstanceMigrationSourceState struct {
	VirtualMachineInstanceCommonMigrationState `json:",inline"`
	NodeSelectors                              map[string]string `json:"nodeSelectors,omitempty"`
}

// +k8s:openapi-gen=true
type VirtualMachineInstanceMigrationTargetState struct {
	VirtualMachineInstanceCommonMigrationState `json:",inline"`
	DomainReadyTimestamp                       *metav1.Time   `json:"domainReadyTimestamp,omitempty"`
	DomainDetected                             bool           `json:"domainDetected,omitempty"`
	NodeAddress                                *string        `json:"nodeAddress,omitempty"`
	DirectMigrationNodePorts                   map[string]int `json:"directMigrationNodePorts,omitempty"`
	AttachmentPodUID                           *types.UID     `json:"attachmentPodUID,omitempty"`
	// +listType=atomic
	CPUSet       []int   `json:"cpuSet,omitempty"`
	NodeTopology *string `json:"nodeTopology,omitempty"`
}

// +k8s:openapi-gen=true
type MigrationNetworkType string

// Values of MigrationNetworkType.
const (
	Pod       MigrationNetworkType = "Pod"
	Migration MigrationNetworkType = "Migration"
)

type MigrationAbortStatus string

// Values of MigrationAbortStatus.
const (
	MigrationAbortSucceeded  MigrationAbortStatus = "Succeeded"
	MigrationAbortFailed     MigrationAbortStatus = "Failed"
	MigrationAbortInProgress MigrationAbortStatus = "Aborting"
)

type MigrationMode string

// Values of MigrationMode.
const (
	MigrationPreCopy  MigrationMode = "PreCopy"
	MigrationPostCopy MigrationMode = "PostCopy"
	MigrationPaused   MigrationMode = "Paused"
)

type VirtualMachineInstanceMigrationTransport string

// Values of VirtualMachineInstanceMigrationTransport.
const (
	MigrationTransportUnix VirtualMachineInstanceMigrationTransport = "Unix"
)

type VirtualMachineInstanceMigrationMethod string

// Values of VirtualMachineInstanceMigrationMethod.
const (
	BlockMigration VirtualMachineInstanceMigrationMethod = "BlockMigration"
	LiveMigration  VirtualMachineInstanceMigrationMethod = "LiveMigration"
)
