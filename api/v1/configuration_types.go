// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KubeVirtConfiguration is how VMs behave. A change works at once for what starts afterwards.
type KubeVirtConfiguration struct {
	// cpuModel is the CPU model of a VMI that names none. Default: host-model.
	CPUModel string `json:"cpuModel,omitempty"`
	// cpuRequest is the CPU request of a VMI that has none. Default: its CPUs divided by cpuAllocationRatio.
	CPURequest *resource.Quantity `json:"cpuRequest,omitempty"`
	// developerConfiguration are feature gates, emulation and other settings.
	DeveloperConfiguration *DeveloperConfiguration `json:"developerConfiguration,omitempty"`
	// emulatedMachines are patterns of machine types that a VMI may name. Default: those of q35.
	EmulatedMachines []string `json:"emulatedMachines,omitempty"`
	// imagePullPolicy is the pull policy of launcher Pods.
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// migrations is how live migrations behave.
	MigrationConfiguration *MigrationConfiguration `json:"migrations,omitempty"`
	// machineType is the machine type of a VMI that names none. Default: q35.
	MachineType string `json:"machineType,omitempty"`
	// network is how VMIs are connected.
	NetworkConfiguration *NetworkConfiguration `json:"network,omitempty"`
	// ovmfPath is where the EFI firmware lies in the launcher image.
	OVMFPath string `json:"ovmfPath,omitempty"`
	// selinuxLauncherType is the SELinux type of launcher Pods.
	SELinuxLauncherType string `json:"selinuxLauncherType,omitempty"`
	// defaultRuntimeClass is the runtime class of launcher Pods. Default: the cluster's.
	DefaultRuntimeClass string `json:"defaultRuntimeClass,omitempty"`
	// smbios is what a guest's firmware reports about the machine.
	SMBIOSConfig *SMBiosConfiguration `json:"smbios,omitempty"`
	// architectureConfiguration are settings for each architecture.
	ArchitectureConfiguration *ArchConfiguration `json:"architectureConfiguration,omitempty"`
	// evictionStrategy is the strategy of a VMI that names none. Default: None.
	EvictionStrategy *EvictionStrategy `json:"evictionStrategy,omitempty"`
	// additionalGuestMemoryOverheadRatio multiplies the computed memory overhead, such as "1.5". At least 1. Default: 1.
	AdditionalGuestMemoryOverheadRatio *string `json:"additionalGuestMemoryOverheadRatio,omitempty"`
	// supportContainerResources are CPU and memory of containers beside the launcher's.
	// +listType=map
	// +listMapKey=type
	SupportContainerResources []SupportContainerResources `json:"supportContainerResources,omitempty"`
	// supportedGuestAgentVersions are patterns of guest agent versions. Default: all.
	SupportedGuestAgentVersions []string `json:"supportedGuestAgentVersions,omitempty"`
	// memBalloonStatsPeriod is the time in seconds between memory statistics; 0 is none. Default: 10.
	MemBalloonStatsPeriod *uint32 `json:"memBalloonStatsPeriod,omitempty"`
	// permittedHostDevices are devices of nodes that VMIs may use.
	PermittedHostDevices *PermittedHostDevices `json:"permittedHostDevices,omitempty"`
	// mediatedDevicesConfiguration are mediated devices to make on nodes.
	MediatedDevicesConfiguration *MediatedDevicesConfiguration `json:"mediatedDevicesConfiguration,omitempty"`
	// minCPUModel is not used.
	DeprecatedMinCPUModel string `json:"minCPUModel,omitempty"`
	// obsoleteCPUModels are CPU models that nodes do not offer.
	ObsoleteCPUModels map[string]bool `json:"obsoleteCPUModels,omitempty"`
	// virtualMachineInstancesPerNode is how many VMIs a node can take. Default: 1000.
	VirtualMachineInstancesPerNode *int `json:"virtualMachineInstancesPerNode,omitempty"`
	// apiConfiguration is how virt-api talks to the API server.
	APIConfiguration *ReloadableComponentConfiguration `json:"apiConfiguration,omitempty"`
	// webhookConfiguration is how webhooks talk to the API server.
	WebhookConfiguration *ReloadableComponentConfiguration `json:"webhookConfiguration,omitempty"`
	// controllerConfiguration is how virt-controller talks to the API server.
	ControllerConfiguration *ReloadableComponentConfiguration `json:"controllerConfiguration,omitempty"`
	// handlerConfiguration is how virt-handler talks to the API server.
	HandlerConfiguration *ReloadableComponentConfiguration `json:"handlerConfiguration,omitempty"`
	// tlsConfiguration restricts TLS of our servers.
	TLSConfiguration *TLSConfiguration `json:"tlsConfiguration,omitempty"`
	// seccompConfiguration is the seccomp profile of launcher Pods.
	SeccompConfiguration *SeccompConfiguration `json:"seccompConfiguration,omitempty"`
	// vmStateStorageClass is the storage class for TPM and EFI state.
	VMStateStorageClass string `json:"vmStateStorageClass,omitempty"`
	// virtualMachineOptions turns features of VMs off.
	VirtualMachineOptions *VirtualMachineOptions `json:"virtualMachineOptions,omitempty"`
	// ksmConfiguration defines on which nodes same pages are merged.
	KSMConfiguration *KSMConfiguration `json:"ksmConfiguration,omitempty"`
	// autoCPULimitNamespaceLabelSelector selects the namespaces in which VMIs get a CPU limit.
	AutoCPULimitNamespaceLabelSelector *metav1.LabelSelector `json:"autoCPULimitNamespaceLabelSelector,omitempty"`
	// liveUpdateConfiguration limits hotplug of CPUs and memory.
	LiveUpdateConfiguration *LiveUpdateConfiguration `json:"liveUpdateConfiguration,omitempty"`
	// vmRolloutStrategy defines how changes of a VM reach its guest: LiveUpdate (the default) or Stage, at the next start.
	// +nullable
	// +kubebuilder:validation:Enum=Stage;LiveUpdate
	VMRolloutStrategy *VMRolloutStrategy `json:"vmRolloutStrategy,omitempty"`
	// commonInstancetypesDeployment defines whether common instance types are installed.
	// +nullable
	CommonInstancetypesDeployment *CommonInstancetypesDeployment `json:"commonInstancetypesDeployment,omitempty"`
	// virtTemplateDeployment defines whether templates are installed.
	// +nullable
	VirtTemplateDeployment *VirtTemplateDeployment `json:"virtTemplateDeployment,omitempty"`
	// instancetype is how instance types are referred to.
	// +nullable
	Instancetype *InstancetypeConfiguration `json:"instancetype,omitempty"`
	// hypervisors names the hypervisor.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems:=1
	Hypervisors []HypervisorConfiguration `json:"hypervisors,omitempty"`
	// changedBlockTrackingLabelSelectors defines which VMs have changed blocks tracked.
	// +nullable
	ChangedBlockTrackingLabelSelectors *ChangedBlockTrackingSelectors `json:"changedBlockTrackingLabelSelectors,omitempty"`
	// persistentReservationConfiguration is for SCSI persistent reservations.
	// +nullable
	PersistentReservationConfiguration *PersistentReservationConfiguration `json:"persistentReservationConfiguration,omitempty"`
	// confidentialCompute is for encrypted guests.
	// +nullable
	ConfidentialCompute *ConfidentialComputeConfiguration `json:"confidentialCompute,omitempty"`
	// roleAggregationStrategy defines whether our roles join the cluster's: AggregateToDefault (the default) or Manual.
	// +optional
	// +kubebuilder:validation:Enum=AggregateToDefault;Manual
	RoleAggregationStrategy *RoleAggregationStrategy `json:"roleAggregationStrategy,omitempty"`
}

// DeveloperConfiguration are feature gates, emulation and other settings.
type DeveloperConfiguration struct {
	// featureGates are features to turn on.
	// +optional
	// +listType=atomic
	FeatureGates []string `json:"featureGates,omitempty"`
	// disabledFeatureGates are features to turn off.
	// +optional
	// +listType=atomic
	DisabledFeatureGates []string `json:"disabledFeatureGates,omitempty"`
	// pvcTolerateLessSpaceUpToPercent is by how many percent a disk may be smaller than its claim. Default: 10.
	LessPVCSpaceToleration int `json:"pvcTolerateLessSpaceUpToPercent,omitempty"`
	// minimumReservePVCBytes is the space in bytes that a new disk leaves free on its claim. Default: 131072.
	MinimumReservePVCBytes uint64 `json:"minimumReservePVCBytes,omitempty"`
	// memoryOvercommit is the guest's memory in percent of what is requested for it. At least 10. Default: 100.
	// +kubebuilder:validation:Minimum:=10
	MemoryOvercommit int `json:"memoryOvercommit,omitempty"`
	// nodeSelectors are labels that a VMI's node must have.
	NodeSelectors map[string]string `json:"nodeSelectors,omitempty"`
	// useEmulation runs guests without KVM. Default: false.
	UseEmulation bool `json:"useEmulation,omitempty"`
	// cpuAllocationRatio is how many virtual CPUs share a requested CPU. Default: 10.
	CPUAllocationRatio int `json:"cpuAllocationRatio,omitempty"`
	// minimumClusterTSCFrequency is a time stamp counter frequency in Hz that all nodes offer.
	MinimumClusterTSCFrequency *int64 `json:"minimumClusterTSCFrequency,omitempty"`
	// diskVerification limits the check of containerDisks.
	DiskVerification *DiskVerification `json:"diskVerification,omitempty"`
	// logVerbosity is how much components log.
	LogVerbosity *LogVerbosity `json:"logVerbosity,omitempty"`
	// clusterProfiler lets components be profiled. Default: false.
	ClusterProfiler bool `json:"clusterProfiler,omitempty"`
}

// DiskVerification limits the check of containerDisks.
type DiskVerification struct {
	// memoryLimit is the memory that the check may use.
	MemoryLimit *resource.Quantity `json:"memoryLimit"`
}

// LogVerbosity is how much components log, from 0 to 9. Default: 2 each.
type LogVerbosity struct {
	// virtAPI is for virt-api.
	VirtAPI uint `json:"virtAPI,omitempty"`
	// virtController is for virt-controller.
	VirtController uint `json:"virtController,omitempty"`
	// virtHandler is for virt-handler.
	VirtHandler uint `json:"virtHandler,omitempty"`
	// virtLauncher is for virt-launcher.
	VirtLauncher uint `json:"virtLauncher,omitempty"`
	// virtOperator is for the KubeVirt reconciler.
	VirtOperator uint `json:"virtOperator,omitempty"`
	// virtSynchronizationController is for virt-synchronization-controller.
	VirtSynchronizationController uint `json:"virtSynchronizationController,omitempty"`
	// nodeVerbosity is for virt-handler on the nodes named.
	NodeVerbosity map[string]uint `json:"nodeVerbosity,omitempty"`
}

// ArchConfiguration are settings for each architecture.
type ArchConfiguration struct {
	// amd64 is for amd64.
	Amd64 *ArchSpecificConfiguration `json:"amd64,omitempty"`
	// arm64 is for arm64.
	Arm64 *ArchSpecificConfiguration `json:"arm64,omitempty"`
	// ppc64le is not used.
	Ppc64le *ArchSpecificConfiguration `json:"ppc64le,omitempty"`
	// s390x is for s390x.
	S390x *ArchSpecificConfiguration `json:"s390x,omitempty"`
	// defaultArchitecture is the architecture of a VMI that names none. Default: the manager's.
	DefaultArchitecture string `json:"defaultArchitecture,omitempty"`
}

// ArchSpecificConfiguration are settings for one architecture.
type ArchSpecificConfiguration struct {
	// ovmfPath is where the EFI firmware lies in the launcher image.
	OVMFPath string `json:"ovmfPath,omitempty"`
	// emulatedMachines are patterns of machine types that a VMI may name.
	// +listType=atomic
	EmulatedMachines []string `json:"emulatedMachines,omitempty"`
	// machineType is the machine type of a VMI that names none.
	MachineType string `json:"machineType,omitempty"`
}

// SMBiosConfiguration is what a guest's firmware reports about the machine.
type SMBiosConfiguration struct {
	// manufacturer is the maker. Default: KubeVirt.
	Manufacturer string `json:"manufacturer,omitempty"`
	// product is the product. Default: None.
	Product string `json:"product,omitempty"`
	// version is the version.
	Version string `json:"version,omitempty"`
	// sku is the stock keeping unit.
	Sku string `json:"sku,omitempty"`
	// family is the family. Default: KubeVirt.
	Family string `json:"family,omitempty"`
}

// VirtualMachineOptions turns features of VMs off.
type VirtualMachineOptions struct {
	// disableFreePageReporting keeps guests from giving free memory back.
	DisableFreePageReporting *DisableFreePageReporting `json:"disableFreePageReporting,omitempty"`
	// disableSerialConsoleLog keeps the serial console out of the launcher's log.
	DisableSerialConsoleLog *DisableSerialConsoleLog `json:"disableSerialConsoleLog,omitempty"`
}

// DisableFreePageReporting has no options.
type DisableFreePageReporting struct{}

// DisableSerialConsoleLog has no options.
type DisableSerialConsoleLog struct{}

// LiveUpdateConfiguration limits hotplug of CPUs and memory.
type LiveUpdateConfiguration struct {
	// maxHotplugRatio is how many times its size a guest may grow to. Default: 4.
	MaxHotplugRatio uint32 `json:"maxHotplugRatio,omitempty"`
	// maxCpuSockets is the number of sockets that a guest may grow to.
	MaxCpuSockets *uint32 `json:"maxCpuSockets,omitempty"`
	// maxGuest is the memory that a guest may grow to.
	MaxGuest *resource.Quantity `json:"maxGuest,omitempty"`
}

// VMRolloutStrategy defines how changes of a VM reach its guest.
type VMRolloutStrategy string

// Values of VMRolloutStrategy.
const (
	// VMRolloutStrategyStage keeps them for the next start.
	VMRolloutStrategyStage VMRolloutStrategy = "Stage"
	// VMRolloutStrategyLiveUpdate applies at once what can be.
	VMRolloutStrategyLiveUpdate VMRolloutStrategy = "LiveUpdate"
)

// SupportContainerResources are CPU and memory of a container beside the launcher's.
type SupportContainerResources struct {
	// type is the container.
	Type SupportContainerType `json:"type"`
	// resources are its requests and limits.
	Resources ResourceRequirementsWithoutClaims `json:"resources"`
}

// SupportContainerType is a container beside the launcher's.
type SupportContainerType string

// Values of SupportContainerType.
const (
	// HotplugAttachment brings hotplugged volumes.
	HotplugAttachment SupportContainerType = "hotplug-disk"
	// ContainerDisk brings a containerDisk.
	ContainerDisk SupportContainerType = "container-disk"
	// VirtioFS shares a file system.
	VirtioFS SupportContainerType = "virtiofs"
	// SideCar runs a hook.
	SideCar SupportContainerType = "sidecar"
	// VMExport exports a VM.
	VMExport SupportContainerType = "vmexport"
	// GuestConsoleLog logs the serial console.
	GuestConsoleLog SupportContainerType = "guest-console-log"
)

// KSMConfiguration defines on which nodes same pages are merged.
// +k8s:openapi-gen=true
type KSMConfiguration struct {
	// nodeLabelSelector chooses the nodes. Default: none.
	// +optional
	NodeLabelSelector *metav1.LabelSelector `json:"nodeLabelSelector,omitempty"`
}

// InstancetypeConfiguration is how instance types are referred to.
type InstancetypeConfiguration struct {
	// referencePolicy is reference (the default), expand or expandAll.
	// +nullable
	// +kubebuilder:validation:Enum=reference;expand;expandAll
	ReferencePolicy *InstancetypeReferencePolicy `json:"referencePolicy,omitempty"`
}

// InstancetypeReferencePolicy defines what becomes of a reference to an instance type.
type InstancetypeReferencePolicy string

// Values of InstancetypeReferencePolicy.
const (
	// Reference keeps it.
	Reference InstancetypeReferencePolicy = "reference"
	// Expand puts its content into the VM.
	Expand InstancetypeReferencePolicy = "expand"
	// ExpandAll does so for VMs that exist too.
	ExpandAll InstancetypeReferencePolicy = "expandAll"
)

// CommonInstancetypesDeployment defines whether common instance types are installed.
type CommonInstancetypesDeployment struct {
	// enabled is false to leave them out. Default: true.
	// +nullable
	Enabled *bool `json:"enabled,omitempty"`
}

// VirtTemplateDeployment defines whether templates are installed.
type VirtTemplateDeployment struct {
	// enabled is false to leave them out. Default: true.
	// +nullable
	Enabled *bool `json:"enabled,omitempty"`
}

// RoleAggregationStrategy defines whether our roles join the cluster's.
type RoleAggregationStrategy string

// Values of RoleAggregationStrategy.
const (
	// RoleAggregationStrategyAggregateToDefault adds them to admin, edit and view.
	RoleAggregationStrategyAggregateToDefault RoleAggregationStrategy = "AggregateToDefault"
	// RoleAggregationStrategyManual leaves that to the administrator.
	RoleAggregationStrategyManual RoleAggregationStrategy = "Manual"
)

// HypervisorConfiguration names a hypervisor.
type HypervisorConfiguration struct {
	// name is kvm or hyperv-direct.
	// +kubebuilder:validation:Enum=kvm;hyperv-direct
	Name string `json:"name,omitempty"`
}

// Names of hypervisors.
const (
	// KvmHypervisorName is KVM, the default.
	KvmHypervisorName = "kvm"
	// HyperVDirectHypervisorName is Hyper-V's own hypervisor under a Linux node, by /dev/mshv.
	HyperVDirectHypervisorName = "hyperv-direct"
)

// ChangedBlockTrackingSelectors defines which VMs have changed blocks tracked.
type ChangedBlockTrackingSelectors struct {
	// namespaceLabelSelector chooses namespaces.
	// +optional
	NamespaceLabelSelector *metav1.LabelSelector `json:"namespaceLabelSelector,omitempty"`
	// virtualMachineLabelSelector chooses VMs.
	// +optional
	VirtualMachineLabelSelector *metav1.LabelSelector `json:"virtualMachineLabelSelector,omitempty"`
}

// PersistentReservationConfiguration is for SCSI persistent reservations.
type PersistentReservationConfiguration struct {
	// enabled runs the daemon that they need. Default: false.
	// +nullable
	Enabled *bool `json:"enabled,omitempty"`
}
