// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

// MigrationConfiguration is how live migrations behave.
type MigrationConfiguration struct {
	// nodeDrainTaintKey is the taint that marks a node to be drained. Default: kubevirt.io/drain.
	NodeDrainTaintKey *string `json:"nodeDrainTaintKey,omitempty"`
	// parallelOutboundMigrationsPerNode is how many guests leave a node at once. Default: 2.
	ParallelOutboundMigrationsPerNode *uint32 `json:"parallelOutboundMigrationsPerNode,omitempty"`
	// parallelMigrationsPerCluster is how many guests move at once. Default: 5.
	ParallelMigrationsPerCluster *uint32 `json:"parallelMigrationsPerCluster,omitempty"`
	// allowAutoConverge slows the guest down if copying gets nowhere. Default: false.
	AllowAutoConverge *bool `json:"allowAutoConverge,omitempty"`
	// bandwidthPerMigration limits the bytes a second. Default: 0, no limit.
	BandwidthPerMigration *resource.Quantity `json:"bandwidthPerMigration,omitempty"`
	// completionTimeoutPerGiB is the time in seconds for each GiB after which it is given up. Default: 150.
	CompletionTimeoutPerGiB *int64 `json:"completionTimeoutPerGiB,omitempty"`
	// maxDowntimeMs is the time in milliseconds that the guest may be paused.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2000000
	MaxDowntimeMs *uint64 `json:"maxDowntimeMs,omitempty"`
	// progressTimeout is the time in seconds without progress after which it is given up. Default: 150.
	ProgressTimeout *int64 `json:"progressTimeout,omitempty"`
	// utilityVolumesTimeout is the time in seconds to wait for utility volumes to go. Default: 150.
	UtilityVolumesTimeout *int64 `json:"utilityVolumesTimeout,omitempty"`
	// unsafeMigrationOverride migrates although libvirt thinks it unsafe. Default: false.
	UnsafeMigrationOverride *bool `json:"unsafeMigrationOverride,omitempty"`
	// allowPostCopy switches the guest over before all is copied if it takes too long. Default: false.
	AllowPostCopy *bool `json:"allowPostCopy,omitempty"`
	// allowWorkloadDisruption pauses the guest, or switches it over early, if it takes too long. Default: as
	// allowPostCopy.
	AllowWorkloadDisruption *bool `json:"allowWorkloadDisruption,omitempty"`
	// disableTLS leaves the transfer unencrypted. Default: false.
	DisableTLS *bool `json:"disableTLS,omitempty"`
	// network names the NetworkAttachmentDefinition to use. Default: the Pod's network.
	Network *string `json:"network,omitempty"`
	// matchSELinuxLevelOnMigration gives the new launcher the SELinux level of the old. Default: true.
	MatchSELinuxLevelOnMigration *bool `json:"matchSELinuxLevelOnMigration,omitempty"`
}

// VMIMConfigurationOptions are the settings of one live migration.
type VMIMConfigurationOptions struct {
	// nodeDrainTaintKey is the taint that marks a node to be drained. Default: kubevirt.io/drain.
	NodeDrainTaintKey *string `json:"nodeDrainTaintKey,omitempty"`
	// parallelOutboundMigrationsPerNode is how many guests leave a node at once. Default: 2.
	ParallelOutboundMigrationsPerNode *uint32 `json:"parallelOutboundMigrationsPerNode,omitempty"`
	// parallelMigrationsPerCluster is how many guests move at once. Default: 5.
	ParallelMigrationsPerCluster *uint32 `json:"parallelMigrationsPerCluster,omitempty"`
	// allowAutoConverge slows the guest down if copying gets nowhere. Default: false.
	AllowAutoConverge *bool `json:"allowAutoConverge,omitempty"`
	// bandwidthPerMigration limits the bytes a second. Default: 0, no limit.
	BandwidthPerMigration *resource.Quantity `json:"bandwidthPerMigration,omitempty"`
	// completionTimeoutPerGiB is the time in seconds for each GiB after which it is given up. Default: 150.
	CompletionTimeoutPerGiB *int64 `json:"completionTimeoutPerGiB,omitempty"`
	// maxDowntimeMs is the time in milliseconds that the guest may be paused.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2000000
	MaxDowntimeMs *uint64 `json:"maxDowntimeMs,omitempty"`
	// progressTimeout is the time in seconds without progress after which it is given up. Default: 150.
	ProgressTimeout *int64 `json:"progressTimeout,omitempty"`
	// utilityVolumesTimeout is the time in seconds to wait for utility volumes to go. Default: 150.
	UtilityVolumesTimeout *int64 `json:"utilityVolumesTimeout,omitempty"`
	// unsafeMigrationOverride migrates although libvirt thinks it unsafe. Default: false.
	UnsafeMigrationOverride *bool `json:"unsafeMigrationOverride,omitempty"`
	// allowPostCopy switches the guest over before all is copied if it takes too long. Default: false.
	AllowPostCopy *bool `json:"allowPostCopy,omitempty"`
	// allowWorkloadDisruption pauses the guest, or switches it over early, if it takes too long. Default: as
	// allowPostCopy.
	AllowWorkloadDisruption *bool `json:"allowWorkloadDisruption,omitempty"`
	// disableTLS leaves the transfer unencrypted. Default: false.
	DisableTLS *bool `json:"disableTLS,omitempty"`
	// network names the NetworkAttachmentDefinition to use. Default: the Pod's network.
	Network *string `json:"network,omitempty"`
	// matchSELinuxLevelOnMigration gives the new launcher the SELinux level of the old. Default: true.
	MatchSELinuxLevelOnMigration *bool `json:"matchSELinuxLevelOnMigration,omitempty"`
	// experimental may change without notice.
	ExperimentalMigrationOptions *ExperimentalMigrationOptions `json:"experimental,omitempty"`
}

// ExperimentalMigrationOptions may change without notice.
type ExperimentalMigrationOptions struct {
	// stallDetector finds migrations that get nowhere.
	// +optional
	StallDetector *StallDetectorOptions `json:"stallDetector,omitempty"`
	// compression is none or zstd. Default: zstd where bandwidthPerMigration is 10Mi to 128Mi, post-copy is not allowed
	// and the guest has no dedicated CPUs; none otherwise. With post-copy allowed it has no effect.
	// +kubebuilder:validation:Enum=none;zstd
	// +optional
	Compression *MigrationCompression `json:"compression,omitempty"`
}

// StallDetectorOptions are how migrations that get nowhere are found.
type StallDetectorOptions struct {
	// stallMargin is the progress in percent below which a migration counts as stalled.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	StallMargin *int64 `json:"stallMargin,omitempty"`
	// ewmaAlpha is the weight of the newest measurement, from 0 to 1.
	// +optional
	EwmaAlpha *string `json:"ewmaAlpha,omitempty"`
	// stallProgressTimeout is the time in seconds without progress that is borne.
	// +optional
	StallProgressTimeout *uint64 `json:"stallProgressTimeout,omitempty"`
	// switchoverTimeout is the time in seconds that the switch may take.
	// +optional
	SwitchoverTimeout *uint64 `json:"switchoverTimeout,omitempty"`
	// precopyPossibleFactor is the factor up to which copying ahead is thought to succeed.
	// +optional
	PrecopyPossibleFactor *string `json:"precopyPossibleFactor,omitempty"`
	// patienceWindowDecayFactor is how patience shrinks.
	// +optional
	PatienceWindowDecayFactor *string `json:"patienceWindowDecayFactor,omitempty"`
	// searchLocalMinima waits for a moment with little to copy.
	// +optional
	SearchLocalMinima *bool `json:"searchLocalMinima,omitempty"`
	// completionTimeoutFactor multiplies the completion timeout.
	// +optional
	CompletionTimeoutFactor *string `json:"completionTimeoutFactor,omitempty"`
}

// MigrationCompression is how the transfer is compressed.
type MigrationCompression string

// Values of MigrationCompression.
const (
	// MigrationCompressionNone is not at all.
	MigrationCompressionNone MigrationCompression = "none"
	// MigrationCompressionZstd is by zstd.
	MigrationCompressionZstd MigrationCompression = "zstd"
)
