// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type KubeVirtConfiguration struct {
	CPUModel                           string                  `json:"cpuModel,omitempty"`
	CPURequest                         *resource.Quantity      `json:"cpuRequest,omitempty"`
	DeveloperConfiguration             *DeveloperConfiguration `json:"developerConfiguration,omitempty"`
	EmulatedMachines                   []string                `json:"emulatedMachines,omitempty"`
	ImagePullPolicy                    corev1.PullPolicy       `json:"imagePullPolicy,omitempty"`
	MigrationConfiguration             *MigrationConfiguration `json:"migrations,omitempty"`
	MachineType                        string                  `json:"machineType,omitempty"`
	NetworkConfiguration               *NetworkConfiguration   `json:"network,omitempty"`
	OVMFPath                           string                  `json:"ovmfPath,omitempty"`
	SELinuxLauncherType                string                  `json:"selinuxLauncherType,omitempty"`
	DefaultRuntimeClass                string                  `json:"defaultRuntimeClass,omitempty"`
	SMBIOSConfig                       *SMBiosConfiguration    `json:"smbios,omitempty"`
	ArchitectureConfiguration          *ArchConfiguration      `json:"architectureConfiguration,omitempty"`
	EvictionStrategy                   *EvictionStrategy       `json:"evictionStrategy,omitempty"`
	AdditionalGuestMemoryOverheadRatio *string                 `json:"additionalGuestMemoryOverheadRatio,omitempty"`
	// +listType=map
	// +listMapKey=type
	SupportContainerResources          []SupportContainerResources       `json:"supportContainerResources,omitempty"`
	SupportedGuestAgentVersions        []string                          `json:"supportedGuestAgentVersions,omitempty"`
	MemBalloonStatsPeriod              *uint32                           `json:"memBalloonStatsPeriod,omitempty"`
	PermittedHostDevices               *PermittedHostDevices             `json:"permittedHostDevices,omitempty"`
	MediatedDevicesConfiguration       *MediatedDevicesConfiguration     `json:"mediatedDevicesConfiguration,omitempty"`
	DeprecatedMinCPUModel              string                            `json:"minCPUModel,omitempty"`
	ObsoleteCPUModels                  map[string]bool                   `json:"obsoleteCPUModels,omitempty"`
	VirtualMachineInstancesPerNode     *int                              `json:"virtualMachineInstancesPerNode,omitempty"`
	APIConfiguration                   *ReloadableComponentConfiguration `json:"apiConfiguration,omitempty"`
	WebhookConfiguration               *ReloadableComponentConfiguration `json:"webhookConfiguration,omitempty"`
	ControllerConfiguration            *ReloadableComponentConfiguration `json:"controllerConfiguration,omitempty"`
	HandlerConfiguration               *ReloadableComponentConfiguration `json:"handlerConfiguration,omitempty"`
	TLSConfiguration                   *TLSConfiguration                 `json:"tlsConfiguration,omitempty"`
	SeccompConfiguration               *SeccompConfiguration             `json:"seccompConfiguration,omitempty"`
	VMStateStorageClass                string                            `json:"vmStateStorageClass,omitempty"`
	VirtualMachineOptions              *VirtualMachineOptions            `json:"virtualMachineOptions,omitempty"`
	KSMConfiguration                   *KSMConfiguration                 `json:"ksmConfiguration,omitempty"`
	AutoCPULimitNamespaceLabelSelector *metav1.LabelSelector             `json:"autoCPULimitNamespaceLabelSelector,omitempty"`
	LiveUpdateConfiguration            *LiveUpdateConfiguration          `json:"liveUpdateConfiguration,omitempty"`
	// +nullable
	// +kubebuilder:validation:Enum=Stage;LiveUpdate
	VMRolloutStrategy *VMRolloutStrategy `json:"vmRolloutStrategy,omitempty"`
	// +nullable
	CommonInstancetypesDeployment *CommonInstancetypesDeployment `json:"commonInstancetypesDeployment,omitempty"`
	// +nullable
	VirtTemplateDeployment *VirtTemplateDeployment `json:"virtTemplateDeployment,omitempty"`
	// +nullable
	Instancetype *InstancetypeConfiguration `json:"instancetype,omitempty"`
	// +listType=atomic
	// +kubebuilder:validation:MaxItems:=1
	Hypervisors []HypervisorConfiguration `json:"hypervisors,omitempty"`
	// +nullable
	ChangedBlockTrackingLabelSelectors *ChangedBlockTrackingSelectors `json:"changedBlockTrackingLabelSelectors,omitempty"`
	// +nullable
	PersistentReservationConfiguration *PersistentReservationConfiguration `json:"persistentReservationConfiguration,omitempty"`
	// +nullable
	ConfidentialCompute *ConfidentialComputeConfiguration `json:"confidentialCompute,omitempty"`
	// +optional
	// +kubebuilder:validation:Enum=AggregateToDefault;Manual
	RoleAggregationStrategy *RoleAggregationStrategy `json:"roleAggregationStrategy,omitempty"`
}

type DeveloperConfiguration struct {
	// +optional
	// +listType=atomic
	FeatureGates []string `json:"featureGates,omitempty"`
	// +optional
	// +listType=atomic
	DisabledFeatureGates   []string `json:"disabledFeatureGates,omitempty"`
	LessPVCSpaceToleration int      `json:"pvcTolerateLessSpaceUpToPercent,omitempty"`
	MinimumReservePVCBytes uint64   `json:"minimumReservePVCBytes,omitempty"`
	// +kubebuilder:validation:Minimum:=10
	MemoryOvercommit           int               `json:"memoryOvercommit,omitempty"`
	NodeSelectors              map[string]string `json:"nodeSelectors,omitempty"`
	UseEmulation               bool              `json:"useEmulation,omitempty"`
	CPUAllocationRatio         int               `json:"cpuAllocationRatio,omitempty"`
	MinimumClusterTSCFrequency *int64            `json:"minimumClusterTSCFrequency,omitempty"`
	DiskVerification           *DiskVerification `json:"diskVerification,omitempty"`
	LogVerbosity               *LogVerbosity     `json:"logVerbosity,omitempty"`
	ClusterProfiler            bool              `json:"clusterProfiler,omitempty"`
}

type DiskVerification struct {
	MemoryLimit *resource.Quantity `json:"memoryLimit"`
}

type LogVerbosity struct {
	VirtAPI                       uint            `json:"virtAPI,omitempty"`
	VirtController                uint            `json:"virtController,omitempty"`
	VirtHandler                   uint            `json:"virtHandler,omitempty"`
	VirtLauncher                  uint            `json:"virtLauncher,omitempty"`
	VirtOperator                  uint            `json:"virtOperator,omitempty"`
	VirtSynchronizationController uint            `json:"virtSynchronizationController,omitempty"`
	NodeVerbosity                 map[string]uint `json:"nodeVerbosity,omitempty"`
}

type ArchConfiguration struct {
	Amd64               *ArchSpecificConfiguration `json:"amd64,omitempty"`
	Arm64               *ArchSpecificConfiguration `json:"arm64,omitempty"`
	Ppc64le             *ArchSpecificConfiguration `json:"ppc64le,omitempty"`
	S390x               *ArchSpecificConfiguration `json:"s390x,omitempty"`
	DefaultArchitecture string                     `json:"defaultArchitecture,omitempty"`
}

type ArchSpecificConfiguration struct {
	OVMFPath string `json:"ovmfPath,omitempty"`
	// +listType=atomic
	EmulatedMachines []string `json:"emulatedMachines,omitempty"`
	MachineType      string   `json:"machineType,omitempty"`
}

type SMBiosConfiguration struct {
	Manufacturer string `json:"manufacturer,omitempty"`
	Product      string `json:"product,omitempty"`
	Version      string `json:"version,omitempty"`
	Sku          string `json:"sku,omitempty"`
	Family       string `json:"family,omitempty"`
}

type VirtualMachineOptions struct {
	DisableFreePageReporting *DisableFreePageReporting `json:"disableFreePageReporting,omitempty"`
	DisableSerialConsoleLog  *DisableSerialConsoleLog  `json:"disableSerialConsoleLog,omitempty"`
}

type DisableFreePageReporting struct{}

type DisableSerialConsoleLog struct{}

type LiveUpdateConfiguration struct {
	MaxHotplugRatio uint32             `json:"maxHotplugRatio,omitempty"`
	MaxCpuSockets   *uint32            `json:"maxCpuSockets,omitempty"`
	MaxGuest        *resource.Quantity `json:"maxGuest,omitempty"`
}

type VMRolloutStrategy string

// Values of VMRolloutStrategy.
const (
	VMRolloutStrategyStage      VMRolloutStrategy = "Stage"
	VMRolloutStrategyLiveUpdate VMRolloutStrategy = "LiveUpdate"
)

type SupportContainerResources struct {
	// type is which one it is.
	Type      SupportContainerType              `json:"type"`
	Resources ResourceRequirementsWithoutClaims `json:"resources"`
}

type SupportContainerType string

// Values of SupportContainerType.
const (
	HotplugAttachment SupportContainerType = "hotplug-disk"
	ContainerDisk     SupportContainerType = "container-disk"
	VirtioFS          SupportContainerType = "virtiofs"
	SideCar           SupportContainerType = "sidecar"
	VMExport          SupportContainerType = "vmexport"
	GuestConsoleLog   SupportContainerType = "guest-console-log"
)

// +k8s:openapi-gen=true
type KSMConfiguration struct {
	// +optional
	NodeLabelSelector *metav1.LabelSelector `json:"nodeLabelSelector,omitempty"`
}

type InstancetypeConfiguration struct {
	// +nullable
	// +kubebuilder:validation:Enum=reference;expand;expandAll
	ReferencePolicy *InstancetypeReferencePolicy `json:"referencePolicy,omitempty"`
}

type InstancetypeReferencePolicy string

// Values of InstancetypeReferencePolicy.
const (
	Reference InstancetypeReferencePolicy = "reference"
	Expand    InstancetypeReferencePolicy = "expand"
	ExpandAll InstancetypeReferencePolicy = "expandAll"
)

type CommonInstancetypesDeployment struct {
	// +nullable
	Enabled *bool `json:"enabled,omitempty"`
}

type VirtTemplateDeployment struct {
	// +nullable
	Enabled *bool `json:"enabled,omitempty"`
}

type RoleAggregationStrategy string

// Values of RoleAggregationStrategy.
const (
	RoleAggregationStrategyAggregateToDefault RoleAggregationStrategy = "AggregateToDefault"
	RoleAggregationStrategyManual             RoleAggregationStrategy = "Manual"
)

type HypervisorConfiguration struct {
	// name is its name.
	// +kubebuilder:validation:Enum=kvm;hyperv-direct
	Name string `json:"name,omitempty"`
}

type ChangedBlockTrackingSelectors struct {
	// +optional
	NamespaceLabelSelector *metav1.LabelSelector `json:"namespaceLabelSelector,omitempty"`
	// +optional
	VirtualMachineLabelSelector *metav1.LabelSelector `json:"virtualMachineLabelSelector,omitempty"`
}

type PersistentReservationConfiguration struct {
	// +nullable
	Enabled *bool `json:"enabled,omitempty"`
}
