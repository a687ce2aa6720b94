// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"maps"
	"slices"
)

// Stage is the maturity of a feature gate.
type Stage string

// Stages of a feature gate.
const (
	// StageAlpha is off unless it is listed in featureGates.
	StageAlpha Stage = "Alpha"
	// StageBeta is on unless it is listed in disabledFeatureGates.
	StageBeta Stage = "Beta"
	// StageGA is always on.
	StageGA Stage = "GA"
	// StageDeprecated is off unless it is listed in featureGates; it will go away.
	StageDeprecated Stage = "Deprecated"
	// StageDiscontinued is always off.
	StageDiscontinued Stage = "Discontinued"
)

// Gates that this project's code asks for by name.
const (
	GateHostDisk       = "HostDisk"
	GateImageVolume    = "ImageVolume"
	GateNodeRestrict   = "NodeRestriction"
	GateCPUManager     = "CPUManager"
	GateAlignCPUs      = "AlignCPUs"
	GateSeccompProfile = "KubevirtSeccompProfile"
	GatePortRanges     = "PortRangesSpec"
	// GateMemoryOverheadReport reports the memory that a launcher Pod has beyond its guest's.
	GateMemoryOverheadReport = "VmiMemoryOverheadReport"
	// GateStallDetection allows to change maxDowntimeMs, and ends migrations that have stalled at a good moment.
	GateStallDetection = "MigrationStallDetection"
	// GateExternalNetResources leaves it to another component to add the resources of networks to Pods.
	GateExternalNetResources = "ExternalNetResourceInjection"
)

// gates are those of KubeVirt 1.9.0. Source: kubevirt/kubevirt pkg/virt-config/featuregate at v1.9.0.
var gates = stages(map[Stage][]string{
	StageAlpha: {
		"CPUManager", "ExperimentalIgnitionSupport", "HypervStrictCheck", "Sidecar", "HostDevices", "HostDisk",
		"DownwardMetrics", "Root", "WorkloadEncryptionTDX", "VSOCK", "AlignCPUs", "EnableVirtioFsStorageVolumes",
		"PCINUMAAwareTopology", "NetworkDevicesWithDRA", "ObjectGraph", "UtilityVolumes", "ConfigurableHypervisor",
		"IncrementalBackup", "ContainerPathVolumes", "ReservedOverheadMemlock", "VGPULiveMigration",
		"VMStatsCollector", "OCIExport", "Plugins", "GraceIOVirtualization", "IOMMUFD", "FirmwareAutoSelection",
		"MigrationStallDetection", "CrossArchitectureVirtualization", "PortRangesSpec", "DecentralizedLiveMigration",
	},
	StageBeta: {
		"ImageVolume", "Snapshot", "WorkloadEncryptionSEV", "KubevirtSeccompProfile", "NodeRestriction", "GPUsWithDRA",
		"HostDevicesWithDRA", "DeclarativeHotplugVolumes", "PasstBinding",
		"PodSecondaryInterfaceNamingUpgrade", "ExternalNetResourceInjection", "RebootPolicy", "Template",
		"OptOutRoleAggregation", "VmiMemoryOverheadReport", "LibvirtHooksServerAndClient",
	},
	StageGA: {
		"LiveMigration", "SRIOVLiveMigration", "NonRoot", "PSA", "CPUNodeDiscovery", "NUMA", "GPU", "HotplugNICs",
		"CommonInstancetypesDeploymentGate", "BochsDisplayForEFIGuests", "VMLiveUpdateFeatures",
		"NetworkBindingPlugins", "DynamicPodInterfaceNaming", "VolumesUpdateStrategy", "VolumeMigration",
		"DisableCustomSELinuxPolicy", "AutoResourceLimitsGate", "ClusterProfiler", "VMPersistentState", "VMExport",
		"PersistentReservation", "InstancetypeReferencePolicy", "EnableVirtioFsConfigVolumes", "ExpandDisks",
		"PanicDevices", "LiveUpdateNADRef", "VideoConfig", "SecureExecution", "MigrationPriorityQueue",
	},
	StageDeprecated: {
		"DockerSELinuxMCSWorkaround", "MultiArchitecture", "DisableMDEVConfiguration", "HotplugVolumes",
	},
	StageDiscontinued: {"Passt", "Macvtap", "PasstIPStackMigration", "ExperimentalVirtiofsSupport"},
})

func stages(byStage map[Stage][]string) map[string]Stage {
	out := map[string]Stage{}
	for stage, names := range byStage {
		for _, name := range names {
			out[name] = stage
		}
	}
	return out
}

// StageOf is the stage of a feature gate. It is false for a name that KubeVirt 1.9 does not know.
func StageOf(gate string) (Stage, bool) {
	stage, ok := gates[gate]
	return stage, ok
}

// Gates are all feature gates of KubeVirt 1.9.
func Gates() map[string]Stage { return maps.Clone(gates) }

// FeatureGates says which features are on.
type FeatureGates struct {
	enabled, disabled map[string]bool
}

// NewFeatureGates makes the gates from what the KubeVirt object lists.
func NewFeatureGates(enabled, disabled []string) FeatureGates {
	return FeatureGates{enabled: set(enabled), disabled: set(disabled)}
}

// IsEnabled says whether a feature is on. A name that is not known is off: a spelling error in the list
// never turns something on. A gate on both lists is on, as in KubeVirt.
func (g FeatureGates) IsEnabled(gate string) bool {
	switch gates[gate] {
	case StageGA:
		return true
	case StageBeta:
		return g.enabled[gate] || !g.disabled[gate]
	case StageAlpha, StageDeprecated:
		return g.enabled[gate]
	case StageDiscontinued:
		return false
	}
	return false
}

// Listed are the names that the KubeVirt object turns on, sorted.
func (g FeatureGates) Listed() []string { return slices.Sorted(maps.Keys(g.enabled)) }

func set(names []string) map[string]bool {
	out := make(map[string]bool, len(names))
	for _, n := range names {
		out[n] = true
	}
	return out
}
