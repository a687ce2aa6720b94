// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"crypto/tls"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Interface bindings that a guest's default interface can have.
const (
	InterfaceBridge     = "bridge"
	InterfaceMasquerade = "masquerade"
)

// DefaultVerbosity is the log verbosity of each component when nothing is configured.
// Source: kubevirt/kubevirt pkg/virt-config, DefaultVirt*LogVerbosity.
const DefaultVerbosity uint = 2

// Config is the cluster's configuration with every default resolved. It is read-only: maps and slices are shared between all
// readers of a Store.
type Config struct {
	// KubeVirt is the name of the KubeVirt object. It is empty if there is none.
	KubeVirt string
	// UID and Generation are those of the object's metadata.
	UID        types.UID
	Generation int64

	// UseEmulation runs guests without KVM: launcher Pods do not request /dev/kvm and vhost-net.
	UseEmulation bool
	// ClusterProfiler permits profiles of the components.
	ClusterProfiler bool
	// DefaultArchitecture is the architecture of VMIs that do not set one.
	DefaultArchitecture string
	// Architectures are the settings by architecture. Use MachineType and EmulatedMachines.
	Architectures map[string]Architecture
	// CPUModel is the CPU model of VMIs that do not set one. Empty means host-model.
	CPUModel string
	// CPURequest is the CPU request of VMIs that do not set one. Nil means that it is computed from CPUAllocationRatio.
	CPURequest *resource.Quantity
	// CPUAllocationRatio is the number of virtual CPUs for one CPU of the node.
	CPUAllocationRatio int
	// MemoryOvercommit is the guest's memory in percent of the memory that its Pod requests for it.
	MemoryOvercommit int
	// AdditionalGuestMemoryOverheadRatio multiplies the computed memory overhead of a VMI. It is at least 1.
	AdditionalGuestMemoryOverheadRatio float64
	// MinimumReservePVCBytes is the space that a disk image leaves free on its claim.
	MinimumReservePVCBytes uint64
	// PVCTolerateLessSpaceUpToPercent is how much smaller than requested a volume may be, in percent.
	PVCTolerateLessSpaceUpToPercent int
	// MinimumClusterTSCFrequency is the guests' TSC frequency in Hz. Nil means that it is derived from the nodes.
	MinimumClusterTSCFrequency *int64
	// NodeSelectors are added to each launcher Pod.
	NodeSelectors map[string]string
	// VMStateStorageClass is the storage class of the claims for TPM and EFI state. Empty means the default class.
	VMStateStorageClass string
	// DefaultRuntimeClass is the runtime class of launcher Pods. Empty means the cluster's.
	DefaultRuntimeClass string
	// VirtualMachineInstancesPerNode is the maximum number of VMIs on a node.
	VirtualMachineInstancesPerNode int

	// Network is the configuration of VMIs' networks.
	Network Network
	// SMBIOS is the system information in guests' firmware.
	SMBIOS SMBIOS
	// EvictionStrategy is the eviction strategy of VMIs that do not set one.
	EvictionStrategy v1.EvictionStrategy
	// RolloutStrategy is whether changes of a VM are applied to its running VMI.
	RolloutStrategy v1.VMRolloutStrategy
	// LiveUpdate limits how far a running guest can grow.
	LiveUpdate LiveUpdate
	// MigratesWorkloads reports whether guests that need another launcher Pod are migrated: workloadUpdateMethods contains LiveMigrate.
	MigratesWorkloads bool
	// MigrationNetwork is the NetworkAttachmentDefinition of the network of migrations, in the KubeVirt object's namespace unless it
	// names another. An empty name means the Pod network.
	MigrationNetwork types.NamespacedName
	// Migrations is the configuration of migrations. No field is nil except Network, which is nil for the Pod network.
	Migrations v1.MigrationConfiguration
	// MemBalloonStatsPeriod is how often the balloon reports statistics, in seconds. Zero turns them off.
	MemBalloonStatsPeriod uint32
	// DisableFreePageReporting turns free page reporting off for all guests.
	DisableFreePageReporting bool
	// DisableSerialConsoleLog turns the log of the serial console off for VMIs that do not enable it.
	DisableSerialConsoleLog bool
	// HotplugVolumes reports whether volumes are plugged into running guests.
	HotplugVolumes bool
	// HotplugResources override single requests and limits of the container of attachment Pods.
	HotplugResources corev1.ResourceRequirements
	// ConsoleLogResources override single requests and limits of the container that logs a guest's console.
	ConsoleLogResources corev1.ResourceRequirements
	// ExporterResources override single requests and limits of the Pods of exports.
	ExporterResources corev1.ResourceRequirements
	// RestartsContainers reports whether the cluster supports restart policies of containers that differ from the Pod's.
	RestartsContainers bool
	// AutoCPULimitNamespaces selects the namespaces in which launcher Pods get a CPU limit. Nil means none.
	AutoCPULimitNamespaces labels.Selector
	// SkipBackupHooks leaves the backup hooks out of launcher Pods. It is set by an annotation of the KubeVirt object.
	SkipBackupHooks bool
	// LiveMetadata are the annotations and labels that are copied from a VM's template to its running launcher Pod.
	LiveMetadata podspec.LiveMetadata
	// ObsoleteCPUModels are models that are not offered for scheduling.
	ObsoleteCPUModels map[string]bool
	// AlignCPUs makes the number of a guest's dedicated CPUs even if one of them is for QEMU's emulator thread.
	AlignCPUs bool
	// InstancetypeReferencePolicy is whether VMs keep referring to their instance types and preferences.
	InstancetypeReferencePolicy v1.InstancetypeReferencePolicy
	// CommonInstancetypes installs the common instance types and preferences.
	CommonInstancetypes bool
	// ChangedBlockTracking selects the VMs whose changed blocks are tracked.
	ChangedBlockTracking TrackedVMs
	// FeatureGates are the enabled features.
	FeatureGates FeatureGates

	// ImagePullPolicy is the pull policy of the components. Empty means the cluster's default.
	ImagePullPolicy corev1.PullPolicy
	// LauncherPullPolicy is the pull policy of launcher Pods. Empty means the cluster's default.
	LauncherPullPolicy corev1.PullPolicy
	// ImagePullSecrets are those of the components. Launcher Pods are in the namespaces of users, which do not have these Secrets.
	ImagePullSecrets []corev1.LocalObjectReference
	// Images are the images of the components.
	Images Images
	// Verbosity is the log verbosity of each component.
	Verbosity Verbosity
	// Certificates are the lifetimes of the components' certificates.
	Certificates Certificates
	// TLS restricts the versions and ciphers of the components' servers.
	TLS TLS
	// LauncherSeccomp is the seccomp profile of launcher Pods. Nil means the container runtime's.
	LauncherSeccomp *corev1.SeccompProfile
	// RateLimits limit the components' requests to the API server.
	RateLimits RateLimits
}

// LiveUpdate limits how far a running guest can grow, unless its VM sets the limits itself.
type LiveUpdate struct {
	// MaxRatio is how many times its size a guest can grow to.
	MaxRatio uint32
	// MaxSockets is the number of CPU sockets that a guest can grow to. 0 means MaxRatio.
	MaxSockets uint32
	// MaxGuest is the memory that a guest can grow to. Nil means MaxRatio.
	MaxGuest *resource.Quantity
}

// Network is the configuration of VMIs' networks.
type Network struct {
	// DefaultInterface is the binding of the interface that is added to VMIs without interfaces: bridge or masquerade.
	DefaultInterface string
	// PermitBridgeOnPodNetwork reports whether the bridge binding may be used on the Pod network.
	PermitBridgeOnPodNetwork bool
}

// SMBIOS is the system information in guests' firmware.
type SMBIOS struct {
	Manufacturer, Product, Version, SKU, Family string
}

// Images are the images of the components.
type Images struct {
	// Launcher is the image of virt-launcher.
	Launcher string
	// Handler is the image of virt-handler, and Broker that of virt-broker, its privileged half.
	Handler, Broker string
	// API is the image of virt-api.
	API string
	// Guestfs is the image of libguestfs-tools, for virtctl guestfs. Empty if there is none.
	Guestfs string
	// Exporter is the image of virt-exportserver, and ExportProxy that of virt-exportproxy. Empty if there is none.
	Exporter, ExportProxy string
}

// Verbosity is the log verbosity of each component.
type Verbosity struct {
	API, Controller, Handler, Launcher, Operator uint
	// Nodes overrides Handler for the agents of nodes. Use HandlerOn.
	Nodes map[string]uint
}

// HandlerOn returns the verbosity of the agent of a node.
func (v Verbosity) HandlerOn(node string) uint {
	if level, ok := v.Nodes[node]; ok {
		return level
	}
	return v.Handler
}

// IsEnabled reports whether a feature gate is enabled.
func (c Config) IsEnabled(gate string) bool { return c.FeatureGates.IsEnabled(gate) }

// Default returns the configuration for a KubeVirt object without settings.
// Values from kubevirt/kubevirt pkg/virt-config unless a comment says otherwise.
func Default() Config {
	return Config{
		DefaultArchitecture:                defaultArchitecture(),
		Architectures:                      defaultArchitectures(),
		CPUAllocationRatio:                 10,
		MemoryOvercommit:                   100,
		AdditionalGuestMemoryOverheadRatio: 1,
		MinimumReservePVCBytes:             131072,
		PVCTolerateLessSpaceUpToPercent:    10,
		VirtualMachineInstancesPerNode:     1000,
		Network:                            Network{DefaultInterface: InterfaceBridge, PermitBridgeOnPodNetwork: true},
		SMBIOS:                             SMBIOS{Manufacturer: "KubeVirt", Product: "None", Family: "KubeVirt"},
		EvictionStrategy:                   v1.EvictionStrategyNone,
		RolloutStrategy:                    v1.VMRolloutStrategyLiveUpdate,
		LiveUpdate:                         LiveUpdate{MaxRatio: 4},
		HotplugVolumes:                     true,
		Migrations:                         defaultMigrations(),
		MemBalloonStatsPeriod:              10,
		ObsoleteCPUModels:                  defaultObsoleteCPUModels(),
		InstancetypeReferencePolicy:        v1.Reference,
		CommonInstancetypes:                true,
		FeatureGates:                       NewFeatureGates(nil, nil),
		Verbosity: Verbosity{
			API: DefaultVerbosity, Controller: DefaultVerbosity, Handler: DefaultVerbosity,
			Launcher: DefaultVerbosity, Operator: DefaultVerbosity,
		},
		Certificates: Certificates{
			CADuration: 7 * 24 * time.Hour, CARenewBefore: 7 * 24 * time.Hour / renewFraction,
			ServerDuration: 24 * time.Hour, ServerRenewBefore: 24 * time.Hour / renewFraction,
		},
		TLS:        TLS{MinVersion: tls.VersionTLS12},
		RateLimits: defaultRateLimits(),
	}
}

func defaultObsoleteCPUModels() map[string]bool {
	models := []string{
		"486", "pentium", "pentium2", "pentium3", "pentiumpro", "coreduo", "n270", "core2duo", "Conroe",
		"athlon", "phenom", "qemu64", "qemu32", "kvm64", "kvm32", "Opteron_G1", "Opteron_G2",
	}
	obsolete := make(map[string]bool, len(models))
	for _, m := range models {
		obsolete[m] = true
	}
	return obsolete
}
