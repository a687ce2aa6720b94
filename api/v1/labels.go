// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import corev1 "k8s.io/api/core/v1"

// Labels and annotations that tools outside rely on. All names and values are KubeVirt's
// (staging/src/kubevirt.io/api/core/v1/types.go).
const (
	// AppLabel marks what belongs to the system; on a Pod its value is the component ("virt-launcher", "virt-handler").
	AppLabel = "kubevirt.io"
	// CreatedByLabel is on a launcher Pod and contains the UID of its VMI.
	CreatedByLabel = "kubevirt.io/created-by"
	// NodeNameLabel is on a VMI and contains the node that runs it, once its Pod is assigned to the agent.
	NodeNameLabel = "kubevirt.io/nodeName"
	// MigrationTargetNodeNameLabel is on a VMI and contains the target node of a migration.
	MigrationTargetNodeNameLabel = "kubevirt.io/migrationTargetNodeName"
	// OutdatedLauncherImageLabel is on a VMI whose launcher Pod runs an older image than the one configured.
	OutdatedLauncherImageLabel = "kubevirt.io/outdatedLauncherImage"
	// VirtualMachineLabel is on a VMI's ControllerRevisions and names the VM.
	VirtualMachineLabel = AppLabel + "/vm"
	// DeprecatedVirtualMachineNameLabel is on a launcher Pod and contains the VM's name; Services still select by it.
	DeprecatedVirtualMachineNameLabel = "vm.kubevirt.io/name"
	// VirtualMachineInstanceIDLabel is on a launcher Pod and identifies the VMI in a value that fits a label.
	VirtualMachineInstanceIDLabel = "vmi.kubevirt.io/id"
	// MigrationJobLabel is on the target Pod of a migration and contains the migration's UID.
	MigrationJobLabel = "kubevirt.io/migrationJobUID"
	// AllowAccessClusterServicesNPLabel is on Pods that a network policy must let reach the API server and DNS.
	AllowAccessClusterServicesNPLabel = "np.kubevirt.io/allow-access-cluster-services"

	// DomainAnnotation is on a launcher Pod and contains the VMI's name.
	DomainAnnotation = "kubevirt.io/domain"
	// MigrationJobNameAnnotation is on the target Pod of a migration and contains the migration's name.
	MigrationJobNameAnnotation = "kubevirt.io/migrationJobName"
	// MigrationTransportUnixAnnotation is on a launcher Pod that can migrate over a unix socket.
	MigrationTransportUnixAnnotation = "kubevirt.io/migrationTransportUnix"
	// ControllerAPILatestVersionObservedAnnotation is on a VM and a VMI: the newest API version the controller knew.
	ControllerAPILatestVersionObservedAnnotation = "kubevirt.io/latest-observed-api-version"
	// ControllerAPIStorageVersionObservedAnnotation is on a VM and a VMI: the storage version the controller knew.
	ControllerAPIStorageVersionObservedAnnotation = "kubevirt.io/storage-observed-api-version"
	// VirtualMachineGenerationAnnotation is on a VMI and contains the generation of the VM it was made from.
	VirtualMachineGenerationAnnotation = "kubevirt.io/vm-generation"
	// PciTopologyVersionAnnotation is on a VMI and names the scheme by which PCI slots are laid out.
	PciTopologyVersionAnnotation = "kubevirt.io/pci-topology-version"
	// PciInterfaceSlotCountAnnotation is on a VMI of the former scheme and contains how many slots its interfaces take
	// together with the placeholders, so that their slots stay when interfaces are added and removed.
	PciInterfaceSlotCountAnnotation = "kubevirt.io/pci-interface-slot-count"
	// PciTopologyVersionV2 is the scheme before; its addresses depend on the spec.
	PciTopologyVersionV2 = "v2"
	// PciTopologyVersionV3 is the scheme with placeholders for stable addresses and extra root ports for hotplug.
	PciTopologyVersionV3 = "v3"
	// MemoryOverheadAnnotationBytes is on a launcher Pod and contains the memory that it was given beyond its guest's, in
	// bytes.
	MemoryOverheadAnnotationBytes = "kubevirt.io/memory-overhead-bytes"
	// KeepLauncherAfterFailureAnnotation on a VMI requests to keep the launcher Pod alive after a failure, for debugging.
	KeepLauncherAfterFailureAnnotation = "kubevirt.io/keep-launcher-alive-after-failure"
	// AllowPodBridgeNetworkLiveMigrationAnnotation on a VMI allows migration of a bridge on the Pod's network.
	AllowPodBridgeNetworkLiveMigrationAnnotation = "kubevirt.io/allow-pod-bridge-network-live-migration"
	// FreePageReportingDisabledAnnotation on a VMI turns free page reporting of the balloon off.
	FreePageReportingDisabledAnnotation = "kubevirt.io/free-page-reporting-disabled"
	// PlacePCIDevicesOnRootComplex on a VMI puts every PCI device on the root complex.
	PlacePCIDevicesOnRootComplex = "kubevirt.io/placePCIDevicesOnRootComplex"
	// VGADisplayForEFIGuestsX86Annotation on the KubeVirt object gives EFI guests on x86 a VGA display rather than bochs.
	VGADisplayForEFIGuestsX86Annotation = "kubevirt.io/vga-display-efi-x86"
	// PauseGuestAgentProbesAnnotation on a VMI, with a true value, makes probes by guestAgentPing succeed without a
	// request to the guest agent.
	PauseGuestAgentProbesAnnotation = "kubevirt.io/pause-guest-agent-probes"
	// QGSSocketPathAnnotation is on a VMI under Intel TDX and contains the socket of the quote generation service.
	QGSSocketPathAnnotation = "kubevirt.io/qgs-socket-path"
	// DeprecatedNonRootVMIAnnotation is on old VMIs whose launcher does not run as root; now none does.
	DeprecatedNonRootVMIAnnotation = "kubevirt.io/nonroot"
	// EmulatorThreadCompleteToEvenParity on a VMI rounds dedicated CPUs with an isolated emulator thread up to an even
	// number. On the KubeVirt object, with the feature gate AlignCPUs, it does so for all VMIs.
	EmulatorThreadCompleteToEvenParity = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity"
	// AutoMemoryLimitsRatioLabel is on a namespace and contains by how much the memory limit of launcher Pods exceeds
	// their request where a quota requests limits. At least 1.
	AutoMemoryLimitsRatioLabel = "alpha.kubevirt.io/auto-memory-limits-ratio"
	// VirtualMachinePodCPULimitsLabel is on a VMI that is being resized and contains the CPU limit of the migration's
	// target Pod.
	VirtualMachinePodCPULimitsLabel = "kubevirt.io/vmi-pod-cpu-resource-limits"
	// VirtualMachinePodMemoryRequestsLabel is on a VMI that is being resized and contains the memory request of the
	// migration's target Pod.
	VirtualMachinePodMemoryRequestsLabel = "kubevirt.io/vmi-pod-memory-resource-requests"
	// MemoryHotplugOverheadRatioLabel is on a VMI whose memory is being resized and contains the overhead ratio of that
	// moment.
	MemoryHotplugOverheadRatioLabel = "kubevirt.io/memory-hotplug-overhead-ratio"
	// VirtualMachinePoolRevisionName is on a VM of a pool and names the ControllerRevision that it was made from.
	VirtualMachinePoolRevisionName = "kubevirt.io/vm-pool-revision-name"
	// ImmediateDataVolumeCreation on a VM, with the value false, creates its DataVolumes at the first start only.
	ImmediateDataVolumeCreation = "kubevirt.io/immediate-data-volume-creation"
	// PVCMemoryDumpAnnotation is on a claim with a memory dump and contains the VM and the time.
	PVCMemoryDumpAnnotation = "kubevirt.io/memory-dump"
	// PersistentReservationLabelPrefix is the prefix of a label on launcher Pods that use SCSI reservations; the claim's
	// UID follows.
	PersistentReservationLabelPrefix = "pr.kubevirt.io/"
	// DisablePCIHole64 on a VMI turns the 64-bit PCI hole off.
	DisablePCIHole64 = "kubevirt.io/disablePCIHole64"
	// CustomLibvirtLogFiltersAnnotation on a VMI sets libvirt's log filters.
	CustomLibvirtLogFiltersAnnotation = "kubevirt.io/libvirt-log-filters"
	// MemfdMemoryBackend on a VMI, set to "false", backs memory without memfd.
	MemfdMemoryBackend = "kubevirt.io/memfd"
	// IgnitionAnnotation on a VMI contains an Ignition configuration.
	IgnitionAnnotation = "kubevirt.io/ignitiondata"
	// RestoreRunStrategy is on a VM and contains the run strategy to return to.
	RestoreRunStrategy = "kubevirt.io/restore-run-strategy"
	// EphemeralProvisioningObject is on a Pod that exists only while a volume is provisioned.
	EphemeralProvisioningObject = "kubevirt.io/ephemeral-provisioning"
	// CreateMigrationTarget is on a VMI that waits to receive a migration.
	CreateMigrationTarget = "kubevirt.io/create-migration-target"
	// EvictionSourceAnnotation is on a VMI and names the client that requested its eviction.
	EvictionSourceAnnotation = "kubevirt.io/eviction-source"
	// InstancetypeAnnotation is on a VMI and names its namespaced instance type.
	InstancetypeAnnotation = "kubevirt.io/instancetype-name"
	// ClusterInstancetypeAnnotation is on a VMI and names its cluster-wide instance type.
	ClusterInstancetypeAnnotation = "kubevirt.io/cluster-instancetype-name"
	// PreferenceAnnotation is on a VMI and names its namespaced preference.
	PreferenceAnnotation = "kubevirt.io/preference-name"
	// ClusterPreferenceAnnotation is on a VMI and names its cluster-wide preference.
	ClusterPreferenceAnnotation = "kubevirt.io/cluster-preference-name"
)

// Labels and annotations on Nodes, written by virt-controller from the agents' Leases and capability reports.
const (
	// NodeSchedulable is "true" on a node that may get new VMs.
	NodeSchedulable = "kubevirt.io/schedulable"
	// VirtHandlerHeartbeat is the annotation with the time of the agent's last sign of life, RFC 3339.
	VirtHandlerHeartbeat = "kubevirt.io/heartbeat"
	// CPUManager is "true" on a node whose kubelet gives out whole CPUs.
	CPUManager = "kubevirt.io/cpumanager"
	// DeprecatedCPUManager is the older spelling of CPUManager.
	DeprecatedCPUManager = "cpumanager"
	// CPUFeatureLabel is the prefix of a label for each CPU feature that the node's hypervisor offers.
	CPUFeatureLabel = "cpu-feature.node.kubevirt.io/"
	// CPUModelLabel is the prefix of a label for each CPU model that the node's hypervisor can run.
	CPUModelLabel = "cpu-model.node.kubevirt.io/"
	// SupportedHostModelMigrationCPU is the prefix of a label for each host model that can migrate to the node.
	SupportedHostModelMigrationCPU = "cpu-model-migration.node.kubevirt.io/"
	// CPUTimerLabel is the prefix of labels about the node's time stamp counter.
	CPUTimerLabel = "cpu-timer.node.kubevirt.io/"
	// HypervLabel is the prefix of a label for each Hyper-V enlightenment that the node offers.
	HypervLabel = "hyperv.node.kubevirt.io/"
	// CPUModelVendorLabel is the prefix of the label for the vendor of the node's CPU.
	CPUModelVendorLabel = "cpu-vendor.node.kubevirt.io/"
	// SupportedMachineTypeLabel is the prefix of a label for each machine type that the node can run.
	SupportedMachineTypeLabel = "machine-type.node.kubevirt.io/"
	// HostModelCPULabel is the prefix of the label with the CPU model that host-model means on the node.
	HostModelCPULabel = "host-model-cpu.node.kubevirt.io/"
	// HostModelRequiredFeaturesLabel is the prefix of a label for each feature that host-model needs beyond its model.
	HostModelRequiredFeaturesLabel = "host-model-required-features.node.kubevirt.io/"
	// NodeHostModelIsObsoleteLabel marks a node whose host model is among the obsolete ones.
	NodeHostModelIsObsoleteLabel = "node-labeller.kubevirt.io/obsolete-host-model"
	// LabellerSkipNodeAnnotation on a Node keeps its capability labels as they are.
	LabellerSkipNodeAnnotation = "node-labeller.kubevirt.io/skip-node"
	// VMArchLabel is the prefix of a label for each architecture whose VMs the node can run.
	VMArchLabel = "kubevirt.io/vm-arch-"
	// RealtimeLabel marks a node that can run realtime VMs.
	RealtimeLabel = "kubevirt.io/realtime"
	// SEVLabel marks a node that can run VMs under AMD SEV.
	SEVLabel = "kubevirt.io/sev"
	// SEVESLabel marks a node that can run VMs under AMD SEV-ES.
	SEVESLabel = "kubevirt.io/sev-es"
	// SEVSNPLabel marks a node that can run VMs under AMD SEV-SNP.
	SEVSNPLabel = "kubevirt.io/sev-snp"
	// SecureExecutionLabel marks a node that can run VMs under IBM Secure Execution.
	SecureExecutionLabel = "kubevirt.io/s390-pv"
	// TDXLabel marks a node that can run VMs under Intel TDX.
	TDXLabel = "kubevirt.io/tdx"
	// KSMEnabledLabel marks a node on which same-page merging is managed.
	KSMEnabledLabel = "kubevirt.io/ksm-enabled"
)

// Annotations of a Node about same-page merging (KSM).
const (
	// KSMHandlerManagedAnnotation is set if the agent switched same-page merging on, and may switch it off.
	KSMHandlerManagedAnnotation = "kubevirt.io/ksm-handler-managed"
	// KSMPagesBoostOverride is by how many pages to merge more under memory pressure.
	KSMPagesBoostOverride = "kubevirt.io/ksm-pages-boost-override"
	// KSMPagesDecayOverride is by how many pages to merge less without memory pressure.
	KSMPagesDecayOverride = "kubevirt.io/ksm-pages-decay-override"
	// KSMPagesMinOverride is how many pages to merge at least.
	KSMPagesMinOverride = "kubevirt.io/ksm-pages-min-override"
	// KSMPagesMaxOverride is how many pages to merge at most.
	KSMPagesMaxOverride = "kubevirt.io/ksm-pages-max-override"
	// KSMPagesInitOverride is how many pages to merge at first.
	KSMPagesInitOverride = "kubevirt.io/ksm-pages-init-override"
	// KSMSleepMsBaselineOverride is the pause between two passes, in milliseconds for 16 GiB of memory.
	KSMSleepMsBaselineOverride = "kubevirt.io/ksm-sleep-ms-baseline-override"
	// KSMFreePercentOverride is the free memory below which there is pressure, as a ratio of all.
	KSMFreePercentOverride = "kubevirt.io/ksm-free-percent-override"
)

// Labels that Kubernetes recommends, as the installed components carry them.
const (
	// AppLabelPrefix is what their names begin with.
	AppLabelPrefix = "app.kubernetes.io"
	// AppNameLabel is app.kubernetes.io/name.
	AppNameLabel = "app.kubernetes.io/name"
	// AppVersionLabel is app.kubernetes.io/version.
	AppVersionLabel = "app.kubernetes.io/version"
	// AppPartOfLabel is app.kubernetes.io/part-of.
	AppPartOfLabel = "app.kubernetes.io/part-of"
	// AppComponentLabel is app.kubernetes.io/component.
	AppComponentLabel = "app.kubernetes.io/component"
	// AppComponent is the value of AppComponentLabel on everything installed.
	AppComponent = "kubevirt"
	// ManagedByLabel is app.kubernetes.io/managed-by.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedByLabelOperatorValue is the value of ManagedByLabel on what the KubeVirt reconciler installed.
	ManagedByLabelOperatorValue = "virt-operator"
)

// Finalizers.
const (
	// VirtualMachineInstanceFinalizer keeps a VMI until its launcher Pod is finished or gone.
	VirtualMachineInstanceFinalizer = "kubevirt.io/foregroundDeleteVirtualMachine"
	// DeprecatedVirtualMachineInstanceFinalizer is the older spelling; it is removed when found.
	DeprecatedVirtualMachineInstanceFinalizer = "foregroundDeleteVirtualMachine"
	// VirtualMachineControllerFinalizer keeps a VM, and a VMI that a VM owns, until the VM controller has seen the end.
	VirtualMachineControllerFinalizer = "kubevirt.io/virtualMachineControllerFinalize"
	// VirtualMachineInstanceMigrationFinalizer keeps a migration until it has ended.
	VirtualMachineInstanceMigrationFinalizer = "kubevirt.io/migrationJobFinalize"
	// VirtOperatorComponentFinalizer keeps what KubeVirt's operator installed until the operator has removed the rest.
	VirtOperatorComponentFinalizer = "kubevirt.io/virtOperatorFinalizer"
	// KubeVirtFinalizer keeps the KubeVirt object until what it installed is removed.
	KubeVirtFinalizer = "kubevirt.io/foregroundDeleteKubeVirt"
)

// VirtualMachineUnpaused is the launcher Pod's readiness gate; it is False while the guest is paused.
const VirtualMachineUnpaused corev1.PodConditionType = "kubevirt.io/virtual-machine-unpaused"

// CPU models that are modes rather than names, and the default.
const (
	// CPUModeHostPassthrough shows the guest the node's CPU as it is.
	CPUModeHostPassthrough = "host-passthrough"
	// CPUModeHostModel shows the guest the named model that is nearest to the node's CPU.
	CPUModeHostModel = "host-model"
	// DefaultCPUModel is used when neither the VMI nor the KubeVirt object names a model.
	DefaultCPUModel = CPUModeHostModel
)

// VirtIO is the name of the paravirtual bus and of the paravirtual network model.
const VirtIO = "virtio"

// DefaultGracePeriodSeconds is the time a guest has to shut down unless the VMI defines it.
const DefaultGracePeriodSeconds int64 = 30

// UsbClientPassthroughMaxNumberOf is how many USB devices of a client a guest can have at the same time.
const UsbClientPassthroughMaxNumberOf = 4

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
