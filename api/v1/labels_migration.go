// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// Labels and annotations of migrations.
const (
	// MigrationSelectorLabel is on a migration and names its VMI.
	MigrationSelectorLabel = "kubevirt.io/vmi-name"
	// MigrationNameLabel is on a PodDisruptionBudget and names the migration that it protects.
	MigrationNameLabel = "kubevirt.io/migrationName"
	// EvacuationMigrationAnnotation is on a migration that a drain or an eviction triggered, and names the node.
	EvacuationMigrationAnnotation = "kubevirt.io/evacuationMigration"
	// WorkloadUpdateMigrationAnnotation is on a migration to a newer launcher image.
	WorkloadUpdateMigrationAnnotation = "kubevirt.io/workloadUpdateMigration"
	// WorkloadUpdateMigrationAbortionAnnotation on a VMI aborts such a migration.
	WorkloadUpdateMigrationAbortionAnnotation = "kubevirt.io/testWorkloadUpdateMigrationAbortion"
	// VolumesUpdateMigration is on a migration that copies volumes to others.
	VolumesUpdateMigration = "kubevirt.io/volume-update-migration"
	// MigrationTargetReadyTimestamp is on a VMI and contains the time at which the guest ran on the target.
	MigrationTargetReadyTimestamp = "kubevirt.io/migration-target-ready-timestamp"
	// MigrationUnschedulablePodTimeoutSecondsAnnotation on a migration: how long the target's Pod may be unschedulable.
	MigrationUnschedulablePodTimeoutSecondsAnnotation = "kubevirt.io/migrationUnschedulablePodTimeoutSeconds"
	// MigrationPendingPodTimeoutSecondsAnnotation on a migration: how long the target's Pod may be pending for any reason.
	MigrationPendingPodTimeoutSecondsAnnotation = "kubevirt.io/migrationPendingPodTimeoutSeconds"
	// MigrationUtilityVolumesTimeoutSecondsAnnotation on a migration: how long to wait for utility volumes to be detached.
	MigrationUtilityVolumesTimeoutSecondsAnnotation = "kubevirt.io/migrationUtilityVolumesTimeoutSeconds"
)

// MigrationInterfaceName is the interface by which an agent is attached to the network for migrations.
const MigrationInterfaceName = "migration0"
