// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
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
	// StageDeprecated is off unless it is listed in featureGates; it will be removed.
	StageDeprecated Stage = "Deprecated"
	// StageDiscontinued is always off.
	StageDiscontinued Stage = "Discontinued"
)

// Gates that Vireo's code checks.
const (
	GateHostDisk       = "HostDisk"
	GateImageVolume    = "ImageVolume"
	GateNodeRestrict   = "NodeRestriction"
	GateCPUManager     = "CPUManager"
	GateAlignCPUs      = "AlignCPUs"
	GateSeccompProfile = "KubevirtSeccompProfile"
	GatePortRanges     = "PortRangesSpec"
	// GateMemoryOverheadReport adds the memory overhead of launcher Pods to the VMI's status.
	GateMemoryOverheadReport = "VmiMemoryOverheadReport"
	// GateStallDetection enables maxDowntimeMs and the detection of stalled migrations.
	GateStallDetection = "MigrationStallDetection"
	// GateDeclarativeHotplug and the deprecated GateHotplug enable that volumes are plugged into running guests.
	GateDeclarativeHotplug = "DeclarativeHotplugVolumes"
	GateHotplug            = "HotplugVolumes"
	// GateOCIExport exports VMs also as OCI images.
	GateOCIExport = "OCIExport"
	// GateExternalNetResources leaves adding the resources of networks to launcher Pods to another component.
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

// StageOf returns the stage of a feature gate, and false for a name that KubeVirt 1.9 does not know.
func StageOf(gate string) (Stage, bool) {
	stage, ok := gates[gate]
	return stage, ok
}

// FeatureGates are the feature gates listed in the KubeVirt object.
type FeatureGates struct {
	enabled, disabled map[string]bool
}

// NewFeatureGates returns the gates for the lists featureGates and disabledFeatureGates.
func NewFeatureGates(enabled, disabled []string) FeatureGates {
	return FeatureGates{enabled: set(enabled), disabled: set(disabled)}
}

// gates reads the lists of gates. The message about a gate on both, which is enabled, is KubeVirt's.
func (p *parser) gates(d *v1.DeveloperConfiguration, path *field.Path) {
	p.config.FeatureGates = NewFeatureGates(d.FeatureGates, d.DisabledFeatureGates)
	for _, gate := range d.FeatureGates {
		if slices.Contains(d.DisabledFeatureGates, gate) {
			p.errs = append(p.errs, field.Forbidden(path.Child("featureGates"),
				fmt.Sprintf(`feature gate %q exists on both "FeatureGates" and "DisabledFeatureGates"`, gate)))
		}
	}
}

// IsEnabled reports whether a gate is enabled. An unknown name is disabled, even if it is listed. A gate on both lists is
// enabled, as in KubeVirt.
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

func set(names []string) map[string]bool {
	out := make(map[string]bool, len(names))
	for _, n := range names {
		out[n] = true
	}
	return out
}
