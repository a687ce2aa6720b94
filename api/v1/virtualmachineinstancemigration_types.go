// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VirtualMachineInstanceMigration asks to move a running VMI to another node, and tells how that goes. Deleting it while
// the migration runs aborts the migration.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=virtualmachineinstancemigrations,singular=virtualmachineinstancemigration,scope=Namespaced,shortName=vmim;vmims,categories=all
// +kubebuilder:selectablefield:JSONPath=.spec.vmiName
// +kubebuilder:selectablefield:JSONPath=.status.phase
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=.status.phase,description="How far the migration is"
// +kubebuilder:printcolumn:name="VMI",type=string,JSONPath=.spec.vmiName,description="The VMI that moves"
type VirtualMachineInstanceMigration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is which VMI moves, and where it may go.
	Spec VirtualMachineInstanceMigrationSpec `json:"spec"`
	// status is how far the migration is. Set by virt-controller.
	Status VirtualMachineInstanceMigrationStatus `json:"status,omitempty"`
}

// VirtualMachineInstanceMigrationList is a list of VirtualMachineInstanceMigrations.
// +kubebuilder:object:root=true
type VirtualMachineInstanceMigrationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineInstanceMigration `json:"items"`
}

// VirtualMachineInstanceMigrationSpec is which VMI moves, and where it may go. Set by the user; it cannot be changed.
type VirtualMachineInstanceMigrationSpec struct {
	// vmiName is the VMI that moves, in the same namespace. Required by admission. Set by the user.
	VMIName string `json:"vmiName,omitempty"`
	// addedNodeSelector are labels that the target node must have besides what the VMI asks for. A key that the VMI's own
	// nodeSelector has keeps the VMI's value: the choice of nodes can only become smaller. No default. Set by the user.
	// +optional
	AddedNodeSelector map[string]string `json:"addedNodeSelector,omitempty"`
	// sendTo makes this the sending half of a migration between namespaces or clusters. No default. Set by the user.
	SendTo *VirtualMachineInstanceMigrationSource `json:"sendTo,omitempty"`
	// receive makes this the receiving half of a migration between namespaces or clusters. No default. Set by the user.
	Receive *VirtualMachineInstanceMigrationTarget `json:"receive,omitempty"`
	// priority orders migrations that wait for a free slot: system-critical before user-triggered before
	// system-maintenance, and those that say nothing last. Set by whoever creates the migration.
	// +optional
	Priority *MigrationPriority `json:"priority,omitempty"`
}

// MigrationPriority is how urgent a migration is.
type MigrationPriority string

// Values of MigrationPriority.
const (
	// PrioritySystemCritical: a node is being drained.
	PrioritySystemCritical MigrationPriority = "system-critical"
	// PriorityUserTriggered: a person asked.
	PriorityUserTriggered MigrationPriority = "user-triggered"
	// PrioritySystemMaintenance: something that can wait, such as a newer launcher image.
	PrioritySystemMaintenance MigrationPriority = "system-maintenance"
)

// VirtualMachineInstanceMigrationSource is where a sending migration finds its other half.
type VirtualMachineInstanceMigrationSource struct {
	// migrationID is the same on both halves.
	MigrationID string `json:"migrationID"`
	// connectURL is the address of the other side's synchronization controller, with its port.
	ConnectURL string `json:"connectURL"`
}

// VirtualMachineInstanceMigrationTarget is how a receiving migration knows its other half.
type VirtualMachineInstanceMigrationTarget struct {
	// migrationID is the same on both halves.
	MigrationID string `json:"migrationID"`
}

// VirtualMachineInstanceMigrationStatus is how far a migration is. Set by virt-controller.
type VirtualMachineInstanceMigrationStatus struct {
	// phase is how far the migration is. Succeeded and Failed are final. Set by virt-controller.
	Phase VirtualMachineInstanceMigrationPhase `json:"phase,omitempty"`
	// conditions tell what the migration waits for, or that its end was asked for. Set by virt-controller.
	Conditions []VirtualMachineInstanceMigrationCondition `json:"conditions,omitempty"`
	// phaseTransitionTimestamps are when the phases began. Set by virt-controller.
	// +listType=atomic
	// +optional
	PhaseTransitionTimestamps []VirtualMachineInstanceMigrationPhaseTransitionTimestamp `json:"phaseTransitionTimestamps,omitempty"`
	// migrationState is the VMI's own status.migrationState as it was last during this migration. Set by virt-controller.
	MigrationState *VirtualMachineInstanceMigrationState `json:"migrationState,omitempty"`
	// synchronizationAddresses are where the other half can reach this side's synchronization controller, with its port.
	// Set by virt-controller.
	// +optional
	// +listType=atomic
	SynchronizationAddresses []string `json:"synchronizationAddresses,omitempty"`
}

// VirtualMachineInstanceMigrationPhaseTransitionTimestamp is when a phase began.
type VirtualMachineInstanceMigrationPhaseTransitionTimestamp struct {
	// phase is the phase that began.
	Phase VirtualMachineInstanceMigrationPhase `json:"phase,omitempty"`
	// phaseTransitionTimestamp is when it began.
	PhaseTransitionTimestamp metav1.Time `json:"phaseTransitionTimestamp,omitempty"`
}

// VirtualMachineInstanceMigrationPhase is how far a migration is.
type VirtualMachineInstanceMigrationPhase string

// Phases of a migration, in their order.
const (
	// MigrationPhaseUnset: nobody has looked at it yet.
	MigrationPhaseUnset VirtualMachineInstanceMigrationPhase = ""
	// MigrationPending: it waits for a free slot, or for the VMI.
	MigrationPending VirtualMachineInstanceMigrationPhase = "Pending"
	// MigrationScheduling: the target's launcher Pod looks for a node.
	MigrationScheduling VirtualMachineInstanceMigrationPhase = "Scheduling"
	// MigrationScheduled: the target's launcher Pod runs.
	MigrationScheduled VirtualMachineInstanceMigrationPhase = "Scheduled"
	// MigrationPreparingTarget: the target's agent prepares the guest's surroundings.
	MigrationPreparingTarget VirtualMachineInstanceMigrationPhase = "PreparingTarget"
	// MigrationTargetReady: the target can receive.
	MigrationTargetReady VirtualMachineInstanceMigrationPhase = "TargetReady"
	// MigrationRunning: the guest's memory is on its way.
	MigrationRunning VirtualMachineInstanceMigrationPhase = "Running"
	// MigrationSucceeded: the guest runs on the target.
	MigrationSucceeded VirtualMachineInstanceMigrationPhase = "Succeeded"
	// MigrationFailed: the guest stayed where it was, or the migration was aborted.
	MigrationFailed VirtualMachineInstanceMigrationPhase = "Failed"
	// MigrationWaitingForSync: a half of a migration between clusters waits for the other one.
	MigrationWaitingForSync VirtualMachineInstanceMigrationPhase = "WaitingForSync"
	// MigrationSynchronizing: both halves of a migration between clusters exchange their state.
	MigrationSynchronizing VirtualMachineInstanceMigrationPhase = "Synchronizing"
)

// VirtualMachineInstanceMigrationCondition is one thing that is or is not so.
type VirtualMachineInstanceMigrationCondition struct {
	// type is what the condition is about.
	Type VirtualMachineInstanceMigrationConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastProbeTime is when somebody looked last.
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// lastTransitionTime is when status changed last.
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// reason is why, in one word for programs.
	Reason string `json:"reason,omitempty"`
	// message is why, in words for people.
	Message string `json:"message,omitempty"`
}

// VirtualMachineInstanceMigrationConditionType is what a condition of a migration is about.
type VirtualMachineInstanceMigrationConditionType string

// Conditions of a VirtualMachineInstanceMigration.
const (
	// VirtualMachineInstanceMigrationAbortRequested: somebody deleted the migration while it ran.
	VirtualMachineInstanceMigrationAbortRequested VirtualMachineInstanceMigrationConditionType = "migrationAbortRequested"
	// VirtualMachineInstanceMigrationRejectedByResourceQuota: a quota of the namespace leaves no room for the target's Pod.
	VirtualMachineInstanceMigrationRejectedByResourceQuota VirtualMachineInstanceMigrationConditionType = "migrationRejectedByResourceQuota"
	// VirtualMachineInstanceMigrationBlockedByUtilityVolumes: it waits until the guest's utility volumes are detached.
	VirtualMachineInstanceMigrationBlockedByUtilityVolumes VirtualMachineInstanceMigrationConditionType = "migrationBlockedByUtilityVolumes"
	// VirtualMachineInstanceDecentralizedMigrationBlocked: the two halves cannot find together, the message says why.
	VirtualMachineInstanceDecentralizedMigrationBlocked VirtualMachineInstanceMigrationConditionType = "decentralizedMigrationBlocked"
	// VirtualMachineInstanceMigrationBlockedByBackup: it waits until a backup of the guest is finished.
	VirtualMachineInstanceMigrationBlockedByBackup VirtualMachineInstanceMigrationConditionType = "migrationBlockedByBackup"
)
