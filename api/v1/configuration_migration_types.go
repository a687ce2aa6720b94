// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

type MigrationConfiguration struct {
	NodeDrainTaintKey                 *string            `json:"nodeDrainTaintKey,omitempty"`
	ParallelOutboundMigrationsPerNode *uint32            `json:"parallelOutboundMigrationsPerNode,omitempty"`
	ParallelMigrationsPerCluster      *uint32            `json:"parallelMigrationsPerCluster,omitempty"`
	AllowAutoConverge                 *bool              `json:"allowAutoConverge,omitempty"`
	BandwidthPerMigration             *resource.Quantity `json:"bandwidthPerMigration,omitempty"`
	CompletionTimeoutPerGiB           *int64             `json:"completionTimeoutPerGiB,omitempty"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2000000
	MaxDowntimeMs                *uint64 `json:"maxDowntimeMs,omitempty"`
	ProgressTimeout              *int64  `json:"progressTimeout,omitempty"`
	UtilityVolumesTimeout        *int64  `json:"utilityVolumesTimeout,omitempty"`
	UnsafeMigrationOverride      *bool   `json:"unsafeMigrationOverride,omitempty"`
	AllowPostCopy                *bool   `json:"allowPostCopy,omitempty"`
	AllowWorkloadDisruption      *bool   `json:"allowWorkloadDisruption,omitempty"`
	DisableTLS                   *bool   `json:"disableTLS,omitempty"`
	Network                      *string `json:"network,omitempty"`
	MatchSELinuxLevelOnMigration *bool   `json:"matchSELinuxLevelOnMigration,omitempty"`
}

type VMIMConfigurationOptions struct {
	NodeDrainTaintKey                 *string            `json:"nodeDrainTaintKey,omitempty"`
	ParallelOutboundMigrationsPerNode *uint32            `json:"parallelOutboundMigrationsPerNode,omitempty"`
	ParallelMigrationsPerCluster      *uint32            `json:"parallelMigrationsPerCluster,omitempty"`
	AllowAutoConverge                 *bool              `json:"allowAutoConverge,omitempty"`
	BandwidthPerMigration             *resource.Quantity `json:"bandwidthPerMigration,omitempty"`
	CompletionTimeoutPerGiB           *int64             `json:"completionTimeoutPerGiB,omitempty"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2000000
	MaxDowntimeMs                *uint64                       `json:"maxDowntimeMs,omitempty"`
	ProgressTimeout              *int64                        `json:"progressTimeout,omitempty"`
	UtilityVolumesTimeout        *int64                        `json:"utilityVolumesTimeout,omitempty"`
	UnsafeMigrationOverride      *bool                         `json:"unsafeMigrationOverride,omitempty"`
	AllowPostCopy                *bool                         `json:"allowPostCopy,omitempty"`
	AllowWorkloadDisruption      *bool                         `json:"allowWorkloadDisruption,omitempty"`
	DisableTLS                   *bool                         `json:"disableTLS,omitempty"`
	Network                      *string                       `json:"network,omitempty"`
	MatchSELinuxLevelOnMigration *bool                         `json:"matchSELinuxLevelOnMigration,omitempty"`
	ExperimentalMigrationOptions *ExperimentalMigrationOptions `json:"experimental,omitempty"`
}

type ExperimentalMigrationOptions struct {
	// +optional
	StallDetector *StallDetectorOptions `json:"stallDetector,omitempty"`
	// +kubebuilder:validation:Enum=none;zstd
	// +optional
	Compression *MigrationCompression `json:"compression,omitempty"`
}

type StallDetectorOptions struct {
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	StallMargin *int64 `json:"stallMargin,omitempty"`
	// +optional
	EwmaAlpha *string `json:"ewmaAlpha,omitempty"`
	// +optional
	StallProgressTimeout *uint64 `json:"stallProgressTimeout,omitempty"`
	// +optional
	SwitchoverTimeout *uint64 `json:"switchoverTimeout,omitempty"`
	// +optional
	PrecopyPossibleFactor *string `json:"precopyPossibleFactor,omitempty"`
	// +optional
	PatienceWindowDecayFactor *string `json:"patienceWindowDecayFactor,omitempty"`
	// +optional
	SearchLocalMinima *bool `json:"searchLocalMinima,omitempty"`
	// +optional
	CompletionTimeoutFactor *string `json:"completionTimeoutFactor,omitempty"`
}

type MigrationCompression string

// Values of MigrationCompression.
const (
	MigrationCompressionNone MigrationCompression = "none"
	MigrationCompressionZstd MigrationCompression = "zstd"
)
