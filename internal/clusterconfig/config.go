// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Architectures that a guest can have, as Kubernetes names them.
const (
	ArchAMD64 = "amd64"
	ArchARM64 = "arm64"
	ArchS390X = "s390x"
)

// Interface bindings that a guest's default interface can have.
const (
	InterfaceBridge     = "bridge"
	InterfaceMasquerade = "masquerade"
)

// DefaultVerbosity is the log verbosity of each component when nothing is configured.
// Source: kubevirt/kubevirt pkg/virt-config, DefaultVirt*LogVerbosity.
const DefaultVerbosity uint = 2

// Config is the cluster's configuration: plain data, every default resolved. Treat it as read-only: maps and
// slices are shared between all readers of a Store.
type Config struct {
	// KubeVirt names the object that the values come from. It is empty while there is none.
	KubeVirt string
	// Generation is the object's generation.
	Generation int64

	// UseEmulation runs guests without KVM: nothing may ask for /dev/kvm or vhost-net.
	UseEmulation bool
	// DefaultArchitecture is the architecture of a guest that names none.
	DefaultArchitecture string
	// Architectures holds what differs between architectures. Use MachineType, EmulatedMachines and OVMFPath.
	Architectures map[string]Architecture
	// CPUModel is the CPU model of a guest that names none. Empty means host-model.
	CPUModel string
	// CPURequest is the CPU request of a guest that has none. Nil means one computed from CPUAllocationRatio.
	CPURequest *resource.Quantity
	// CPUAllocationRatio is the number of virtual CPUs for one CPU of the node.
	CPUAllocationRatio int
	// MemoryOvercommit is the guest's memory in percent of the memory that its Pod requests for it.
	MemoryOvercommit int
	// AdditionalGuestMemoryOverheadRatio multiplies the computed overhead of a guest. It is at least 1.
	AdditionalGuestMemoryOverheadRatio float64
	// MinimumReservePVCBytes is what a disk image leaves free on its claim.
	MinimumReservePVCBytes uint64
	// PVCTolerateLessSpaceUpToPercent is how much smaller than asked for a claim may turn out to be.
	PVCTolerateLessSpaceUpToPercent int
	// MinimumClusterTSCFrequency is set when the guests' TSC frequency is not to be derived from the nodes.
	MinimumClusterTSCFrequency *int64
	// NodeSelectors are added to each launcher Pod.
	NodeSelectors map[string]string
	// VMStateStorageClass is the storage class of the claims for TPM and EFI state. Empty means the default class.
	VMStateStorageClass string
	// DefaultRuntimeClass is the runtime class of launcher Pods. Empty means the cluster's.
	DefaultRuntimeClass string
	// VirtualMachineInstancesPerNode is the number of guests that fit on a node.
	VirtualMachineInstancesPerNode int

	// Network is how guests without interfaces of their own are connected.
	Network Network
	// SMBIOS is what a guest's firmware tells about the machine.
	SMBIOS SMBIOS
	// EvictionStrategy is the strategy of a guest that names none.
	EvictionStrategy v1.EvictionStrategy
	// RolloutStrategy says whether changes of a VM reach a running guest.
	RolloutStrategy v1.VMRolloutStrategy
	// MigrationNetwork is the NetworkAttachmentDefinition of the network over which guests migrate, in the KubeVirt object's namespace
	// unless it names another. Without a name they do so over the network of Pods.
	MigrationNetwork types.NamespacedName
	// Migrations is how guests migrate. Nothing of it is nil but Network, which is nil for the network of Pods.
	Migrations v1.MigrationConfiguration
	// MemBalloonStatsPeriod is how often the balloon reports statistics, in seconds. Zero turns them off.
	MemBalloonStatsPeriod uint32
	// DisableFreePageReporting turns free page reporting off for all guests.
	DisableFreePageReporting bool
	// DisableSerialConsoleLog turns the log of the serial console off unless a guest asks for it.
	DisableSerialConsoleLog bool
	// ConsoleLogResources replace what the container with a guest's console asks for, each request and limit for itself.
	ConsoleLogResources corev1.ResourceRequirements
	// RestartsContainers says that a container can have a restart policy of its own, whatever the Pod's is.
	RestartsContainers bool
	// AutoCPULimitNamespaces are the namespaces in which launcher Pods get a limit of CPU. Nil means none.
	AutoCPULimitNamespaces labels.Selector
	// SkipBackupHooks leaves the hooks for backups out of launcher Pods. It is an annotation of the KubeVirt object.
	SkipBackupHooks bool
	// LiveMetadata are the annotations and labels of a VM's template that reach its running launcher Pod.
	LiveMetadata podspec.LiveMetadata
	// SupportedGuestAgentVersions are glob patterns. None means that every version is supported.
	SupportedGuestAgentVersions []string
	// ObsoleteCPUModels are models that are not offered for scheduling.
	ObsoleteCPUModels map[string]bool
	// AlignCPUs makes the number of a guest's dedicated CPUs even if one of them is for QEMU's own thread.
	AlignCPUs bool
	// FeatureGates says which features are on.
	FeatureGates FeatureGates

	// ImagePullPolicy is the pull policy of everything that is installed and of launcher Pods. Empty means
	// the cluster's default.
	ImagePullPolicy corev1.PullPolicy
	// ImagePullSecrets are put on everything that is installed and on launcher Pods.
	ImagePullSecrets []corev1.LocalObjectReference
	// Images are the images of what is installed.
	Images Images
	// Verbosity is the log verbosity of each component.
	Verbosity Verbosity
	// Certificates are the lifetimes of the certificates that are made here.
	Certificates Certificates
	// TLS restricts the versions and ciphers of our servers. Nil means Go's defaults.
	TLS *v1.TLSConfiguration
}

// Architecture holds what differs between the guests' architectures.
type Architecture struct {
	MachineType      string
	EmulatedMachines []string
	OVMFPath         string
}

// Network is how guests are connected.
type Network struct {
	// DefaultInterface is the binding of the interface of a guest that has none: bridge or masquerade.
	DefaultInterface string
	// PermitBridgeOnPodNetwork says that the bridge binding may be used on the Pod network.
	PermitBridgeOnPodNetwork bool
}

// SMBIOS is what a guest's firmware tells about the machine.
type SMBIOS struct {
	Manufacturer, Product, Version, SKU, Family string
}

// Images are the images of what is installed.
type Images struct {
	// Launcher is the image of virt-launcher.
	Launcher string
	// Handler is the image of virt-handler.
	Handler string
	// API is the image of virt-api.
	API string
	// Guestfs is the image of libguestfs-tools, for virtctl guestfs. Empty if there is none.
	Guestfs string
}

// Certificates are the lifetimes of certificates, and how long before their end they are renewed.
type Certificates struct {
	CADuration, CARenewBefore         time.Duration
	ServerDuration, ServerRenewBefore time.Duration
}

// Verbosity is the log verbosity of each component.
type Verbosity struct {
	API, Controller, Handler, Launcher, Operator uint
	// Nodes holds what differs for the agent of a node. Use HandlerOn.
	Nodes map[string]uint
}

// HandlerOn is the verbosity of the agent of a node.
func (v Verbosity) HandlerOn(node string) uint {
	if level, ok := v.Nodes[node]; ok {
		return level
	}
	return v.Handler
}

// MachineType is the machine type of a guest that names none. It is empty for an unknown architecture.
func (c Config) MachineType(arch string) string { return c.Architectures[arch].MachineType }

// EmulatedMachines are glob patterns of the machine types that a guest may have.
func (c Config) EmulatedMachines(arch string) []string { return c.Architectures[arch].EmulatedMachines }

// OVMFPath is the directory of the EFI firmware in the launcher image.
func (c Config) OVMFPath(arch string) string { return c.Architectures[arch].OVMFPath }

// IsEnabled says whether a feature is on.
func (c Config) IsEnabled(gate string) bool { return c.FeatureGates.IsEnabled(gate) }

// Default is the configuration of a cluster whose KubeVirt object sets nothing.
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
		Migrations:                         defaultMigrations(),
		MemBalloonStatsPeriod:              10,
		ObsoleteCPUModels:                  defaultObsoleteCPUModels(),
		FeatureGates:                       NewFeatureGates(nil, nil),
		Verbosity: Verbosity{
			API: DefaultVerbosity, Controller: DefaultVerbosity, Handler: DefaultVerbosity,
			Launcher: DefaultVerbosity, Operator: DefaultVerbosity,
		},
		Certificates: Certificates{
			CADuration: 7 * 24 * time.Hour, CARenewBefore: 7 * 24 * time.Hour / renewFraction,
			ServerDuration: 24 * time.Hour, ServerRenewBefore: 24 * time.Hour / renewFraction,
		},
	}
}

// renewFraction: a certificate is renewed when a fifth of its life is left.
const renewFraction = 5

// defaultArchitecture is that of the process: KubeVirt takes the architecture of its operator's node.
func defaultArchitecture() string { return runtime.GOARCH }

func defaultArchitectures() map[string]Architecture {
	return map[string]Architecture{
		ArchAMD64: {MachineType: "q35", EmulatedMachines: []string{"q35*", "pc-q35*"}, OVMFPath: "/usr/share/OVMF"},
		ArchARM64: {MachineType: "virt", EmulatedMachines: []string{"virt*"}, OVMFPath: "/usr/share/AAVMF"},
		ArchS390X: {MachineType: "s390-ccw-virtio", EmulatedMachines: []string{"s390-ccw-virtio*"}},
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
