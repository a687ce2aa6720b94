// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VirtualMachineInstanceMigration requests the migration of a running VMI to another node, and reports its state.
// Deleting it while the migration runs aborts the migration.
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
	// spec is the VMI to migrate and its possible targets.
	Spec VirtualMachineInstanceMigrationSpec `json:"spec"`
	// status is the state of the migration. Set by virt-controller.
	Status VirtualMachineInstanceMigrationStatus `json:"status,omitempty"`
}

// VirtualMachineInstanceMigrationList is a list of VirtualMachineInstanceMigrations.
// +kubebuilder:object:root=true
type VirtualMachineInstanceMigrationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineInstanceMigration `json:"items"`
}

// VirtualMachineInstanceMigrationSpec is the VMI to migrate and its possible targets. Set by the user; it cannot be
// changed.
type VirtualMachineInstanceMigrationSpec struct {
	// vmiName is the VMI to migrate, in the same namespace. Required by admission. Set by the user.
	VMIName string `json:"vmiName,omitempty"`
	// addedNodeSelector are labels that the target node must have besides what the VMI requests. A key that the VMI's own
	// nodeSelector has keeps the VMI's value: the choice of nodes can only become smaller. No default. Set by the user.
	// +optional
	AddedNodeSelector map[string]string `json:"addedNodeSelector,omitempty"`
	// sendTo makes this the sending half of a migration between namespaces or clusters. No default. Set by the user.
	SendTo *VirtualMachineInstanceMigrationSource `json:"sendTo,omitempty"`
	// receive makes this the receiving half of a migration between namespaces or clusters. No default. Set by the user.
	Receive *VirtualMachineInstanceMigrationTarget `json:"receive,omitempty"`
	// priority orders migrations that wait for a free slot: system-critical before user-triggered before
	// system-maintenance, and those without a priority last. Set by the creator of the migration.
	// +optional
	Priority *MigrationPriority `json:"priority,omitempty"`
}

// MigrationPriority is how urgent a migration is.
type MigrationPriority string

// Values of MigrationPriority.
const (
	// PrioritySystemCritical: a node is being drained.
	PrioritySystemCritical MigrationPriority = "system-critical"
	// PriorityUserTriggered: a user requested the migration.
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

// VirtualMachineInstanceMigrationStatus is the state of a migration. Set by virt-controller.
type VirtualMachineInstanceMigrationStatus struct {
	// phase is the state of the migration. Succeeded and Failed are final. Set by virt-controller.
	Phase VirtualMachineInstanceMigrationPhase `json:"phase,omitempty"`
	// conditions are what the migration waits for, and whether its abort was requested. Set by virt-controller.
	Conditions []VirtualMachineInstanceMigrationCondition `json:"conditions,omitempty"`
	// phaseTransitionTimestamps are when the phases started. Set by virt-controller.
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

// VirtualMachineInstanceMigrationPhaseTransitionTimestamp is when a phase started.
type VirtualMachineInstanceMigrationPhaseTransitionTimestamp struct {
	// phase is the phase that started.
	Phase VirtualMachineInstanceMigrationPhase `json:"phase,omitempty"`
	// phaseTransitionTimestamp is when it started.
	PhaseTransitionTimestamp metav1.Time `json:"phaseTransitionTimestamp,omitempty"`
}

// VirtualMachineInstanceMigrationPhase is the state of a migration.
type VirtualMachineInstanceMigrationPhase string

// Phases of a migration, in their order.
const (
	// MigrationPhaseUnset: it has not been processed yet.
	MigrationPhaseUnset VirtualMachineInstanceMigrationPhase = ""
	// MigrationPending: it waits for a free slot, or for the VMI.
	MigrationPending VirtualMachineInstanceMigrationPhase = "Pending"
	// MigrationScheduling: the target's launcher Pod waits for a node.
	MigrationScheduling VirtualMachineInstanceMigrationPhase = "Scheduling"
	// MigrationScheduled: the target's launcher Pod runs.
	MigrationScheduled VirtualMachineInstanceMigrationPhase = "Scheduled"
	// MigrationPreparingTarget: the target's agent prepares the launcher Pod.
	MigrationPreparingTarget VirtualMachineInstanceMigrationPhase = "PreparingTarget"
	// MigrationTargetReady: the target can receive.
	MigrationTargetReady VirtualMachineInstanceMigrationPhase = "TargetReady"
	// MigrationRunning: the transfer is running.
	MigrationRunning VirtualMachineInstanceMigrationPhase = "Running"
	// MigrationSucceeded: the guest runs on the target.
	MigrationSucceeded VirtualMachineInstanceMigrationPhase = "Succeeded"
	// MigrationFailed: the guest stayed on the source, or the migration was aborted.
	MigrationFailed VirtualMachineInstanceMigrationPhase = "Failed"
	// MigrationWaitingForSync: a half of a migration between clusters waits for the other one.
	MigrationWaitingForSync VirtualMachineInstanceMigrationPhase = "WaitingForSync"
	// MigrationSynchronizing: both halves of a migration between clusters exchange their state.
	MigrationSynchronizing VirtualMachineInstanceMigrationPhase = "Synchronizing"
)

// VirtualMachineInstanceMigrationCondition is a condition of a migration.
type VirtualMachineInstanceMigrationCondition struct {
	// type is the condition's type.
	Type VirtualMachineInstanceMigrationConditionType `json:"type"`
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

// VirtualMachineInstanceMigrationConditionType is a type of condition of a migration.
type VirtualMachineInstanceMigrationConditionType string

// Conditions of a VirtualMachineInstanceMigration.
const (
	// VirtualMachineInstanceMigrationAbortRequested: a user deleted the migration while it ran.
	VirtualMachineInstanceMigrationAbortRequested VirtualMachineInstanceMigrationConditionType = "migrationAbortRequested"
	// VirtualMachineInstanceMigrationRejectedByResourceQuota: a quota of the namespace leaves no room for the target's
	// Pod.
	VirtualMachineInstanceMigrationRejectedByResourceQuota VirtualMachineInstanceMigrationConditionType = "migrationRejectedByResourceQuota"
	// VirtualMachineInstanceMigrationBlockedByUtilityVolumes: it waits until the guest's utility volumes are detached.
	VirtualMachineInstanceMigrationBlockedByUtilityVolumes VirtualMachineInstanceMigrationConditionType = "migrationBlockedByUtilityVolumes"
	// VirtualMachineInstanceDecentralizedMigrationBlocked: the two halves cannot connect, the message explains why.
	VirtualMachineInstanceDecentralizedMigrationBlocked VirtualMachineInstanceMigrationConditionType = "decentralizedMigrationBlocked"
	// VirtualMachineInstanceMigrationBlockedByBackup: it waits until a backup of the guest is finished.
	VirtualMachineInstanceMigrationBlockedByBackup VirtualMachineInstanceMigrationConditionType = "migrationBlockedByBackup"
	// VirtualMachineInstanceMigrationReconciling is not KubeVirt's: the migration has not ended. It is there only while it
	// is True, and kstatus reads it.
	VirtualMachineInstanceMigrationReconciling VirtualMachineInstanceMigrationConditionType = "Reconciling"
	// VirtualMachineInstanceMigrationStalled is not KubeVirt's: the migration has failed, and the message says why. It is
	// there only while it is True, and kstatus reads it.
	VirtualMachineInstanceMigrationStalled VirtualMachineInstanceMigrationConditionType = "Stalled"
)

// IsFinal reports whether the migration has finished, by its phase.
func (m *VirtualMachineInstanceMigration) IsFinal() bool {
	return m.Status.Phase == MigrationSucceeded || m.Status.Phase == MigrationFailed
}

// IsQueued reports whether the migration is queued and has no Pod yet, by its phase.
func (m *VirtualMachineInstanceMigration) IsQueued() bool {
	return m.Status.Phase == MigrationPhaseUnset || m.Status.Phase == MigrationPending
}
