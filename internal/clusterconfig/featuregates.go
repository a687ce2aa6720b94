// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
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

// IsEnabled reports whether a gate is enabled. An unknown name is disabled, even if it is listed. A gate on both lists
// is enabled, as in KubeVirt.
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

// GateIncrementalBackup permits backups, and the tracking of changed blocks.
const GateIncrementalBackup = "IncrementalBackup"

// TrackedVMs selects VMs by their labels or by those of their namespaces. Nil selects nothing.
type TrackedVMs struct {
	// VirtualMachines selects by the labels of a VM, Namespaces by those of its namespace.
	VirtualMachines, Namespaces labels.Selector
}

// None reports whether no VM is selected.
func (t TrackedVMs) None() bool { return t.VirtualMachines == nil && t.Namespaces == nil }

// SelectsVM reports whether a VM with these labels is selected, whatever its namespace.
func (t TrackedVMs) SelectsVM(vm map[string]string) bool {
	return t.VirtualMachines != nil && t.VirtualMachines.Matches(labels.Set(vm))
}

// SelectsNamespace reports whether all VMs of a namespace with these labels are selected.
func (t TrackedVMs) SelectsNamespace(namespace map[string]string) bool {
	return t.Namespaces != nil && t.Namespaces.Matches(labels.Set(namespace))
}

func (p *parser) changedBlockTracking(s *v1.ChangedBlockTrackingSelectors, path *field.Path) {
	if s == nil {
		return
	}
	p.config.ChangedBlockTracking = TrackedVMs{
		VirtualMachines: p.selector(s.VirtualMachineLabelSelector, path.Child("virtualMachineLabelSelector")),
		Namespaces:      p.selector(s.NamespaceLabelSelector, path.Child("namespaceLabelSelector")),
	}
}

// selector returns a selector, or nil if there is none or it is invalid.
func (p *parser) selector(s *metav1.LabelSelector, path *field.Path) labels.Selector {
	if s == nil {
		return nil
	}
	if errs := metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{},
		path); len(errs) > 0 {
		p.errs = append(p.errs, errs...)
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		p.errs = append(p.errs, field.Invalid(path, s, err.Error()))
		return nil
	}
	return selector
}

// Architectures that a guest can have, as Kubernetes names them.
const (
	ArchAMD64 = "amd64"
	ArchARM64 = "arm64"
	ArchS390X = "s390x"
)

// Architecture is the configuration of an architecture.
type Architecture struct {
	MachineType      string
	EmulatedMachines []string
}

// MachineType returns the machine type of VMIs that do not set one. It is empty for an unknown architecture.
func (c Config) MachineType(arch string) string { return c.Architectures[arch].MachineType }

// EmulatedMachines returns glob patterns of the machine types that VMIs may have.
func (c Config) EmulatedMachines(arch string) []string { return c.Architectures[arch].EmulatedMachines }

// defaultArchitecture returns the architecture of the process. KubeVirt uses that of its operator's node.
func defaultArchitecture() string { return runtime.GOARCH }

func defaultArchitectures() map[string]Architecture {
	return map[string]Architecture{
		ArchAMD64: {MachineType: "q35", EmulatedMachines: []string{"q35*", "pc-q35*"}},
		ArchARM64: {MachineType: "virt", EmulatedMachines: []string{"virt*"}},
		ArchS390X: {MachineType: "s390-ccw-virtio", EmulatedMachines: []string{"s390-ccw-virtio*"}},
	}
}

// architecture reads the settings of each architecture, and the deprecated ones, which as in KubeVirt win over them for
// every architecture.
func (p *parser) architecture(s *v1.KubeVirtConfiguration, at *field.Path) {
	if a := s.ArchitectureConfiguration; a != nil {
		path := at.Child("architectureConfiguration")
		p.overlay(ArchAMD64, a.Amd64)
		p.overlay(ArchARM64, a.Arm64)
		p.overlay(ArchS390X, a.S390x)
		switch a.DefaultArchitecture {
		case "":
		case ArchAMD64, ArchARM64, ArchS390X:
			p.config.DefaultArchitecture = a.DefaultArchitecture
		default:
			p.errs = append(p.errs, field.NotSupported(path.Child("defaultArchitecture"), a.DefaultArchitecture,
				[]string{ArchAMD64, ArchARM64, ArchS390X}))
		}
	}
	deprecated := &v1.ArchSpecificConfiguration{EmulatedMachines: s.EmulatedMachines, MachineType: s.MachineType}
	for arch := range p.config.Architectures {
		p.overlay(arch, deprecated)
	}
}

// overlay overrides the settings of an architecture with those that are set.
func (p *parser) overlay(arch string, s *v1.ArchSpecificConfiguration) {
	if s == nil {
		return
	}
	a := p.config.Architectures[arch]
	a.MachineType = cmp.Or(s.MachineType, a.MachineType)
	if len(s.EmulatedMachines) > 0 {
		a.EmulatedMachines = s.EmulatedMachines
	}
	p.config.Architectures[arch] = a
}
