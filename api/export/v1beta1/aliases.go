// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	v1 "github.com/vireo-project/vireo/api/export/v1"
)

// The parts of the kind are those of v1, under the names that clients of this version use.
type (
	// VirtualMachineExportSpec is that of v1.
	VirtualMachineExportSpec = v1.VirtualMachineExportSpec
	// VirtualMachineExportStatus is that of v1.
	VirtualMachineExportStatus = v1.VirtualMachineExportStatus
	// VirtualMachineExportPhase is that of v1.
	VirtualMachineExportPhase = v1.VirtualMachineExportPhase
	// VirtualMachineExportLinks is that of v1.
	VirtualMachineExportLinks = v1.VirtualMachineExportLinks
	// VirtualMachineExportLink is that of v1.
	VirtualMachineExportLink = v1.VirtualMachineExportLink
	// VirtualMachineExportManifest is that of v1.
	VirtualMachineExportManifest = v1.VirtualMachineExportManifest
	// ExportManifestType is that of v1.
	ExportManifestType = v1.ExportManifestType
	// VirtualMachineExportVolume is that of v1.
	VirtualMachineExportVolume = v1.VirtualMachineExportVolume
	// VirtualMachineExportVolumeFormat is that of v1.
	VirtualMachineExportVolumeFormat = v1.VirtualMachineExportVolumeFormat
	// ExportVolumeFormat is that of v1.
	ExportVolumeFormat = v1.ExportVolumeFormat
	// VirtualMachineExportBackup is that of v1.
	VirtualMachineExportBackup = v1.VirtualMachineExportBackup
	// VirtualMachineExportBackupEndpoint is that of v1.
	VirtualMachineExportBackupEndpoint = v1.VirtualMachineExportBackupEndpoint
	// ExportBackupEndpoint is that of v1.
	ExportBackupEndpoint = v1.ExportBackupEndpoint
	// ConditionType is that of v1.
	ConditionType = v1.ConditionType
	// Condition is that of v1.
	Condition = v1.Condition
)

// The constants are those of v1.
const (
	App                = v1.App
	DefaultDurationTTL = v1.DefaultDurationTTL

	Pending    = v1.Pending
	Ready      = v1.Ready
	Terminated = v1.Terminated
	Skipped    = v1.Skipped

	AllManifests = v1.AllManifests
	AuthHeader   = v1.AuthHeader

	KubeVirtRaw = v1.KubeVirtRaw
	KubeVirtGz  = v1.KubeVirtGz
	Dir         = v1.Dir
	ArchiveGz   = v1.ArchiveGz

	Map  = v1.Map
	Data = v1.Data

	ConditionReady          = v1.ConditionReady
	ConditionPVC            = v1.ConditionPVC
	ConditionVolumesCreated = v1.ConditionVolumesCreated
)
