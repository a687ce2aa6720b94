// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package clusterconfig resolves the KubeVirt object to a Config with all defaults. All components read the cluster's
// configuration only through it, so that they agree on the meaning of an empty field.
//
// FromKubeVirt resolves one object. A Store follows the object of the install namespace.
package clusterconfig

import (
	"crypto/tls"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

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

// Config is the cluster's configuration with every default resolved. It is read-only: maps and slices are shared
// between all readers of a Store.
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
	// MigratesWorkloads reports whether guests that need another launcher Pod are migrated: workloadUpdateMethods contains
	// LiveMigrate.
	MigratesWorkloads bool
	// MigrationNetwork is the NetworkAttachmentDefinition of the network of migrations, in the KubeVirt object's namespace
	// unless it names another. An empty name means the Pod network.
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
	// ImagePullSecrets are those of the components. Launcher Pods are in the namespaces of users, which do not have these
	// Secrets.
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
	obsolete := make(map[string]bool, 2*len(models))
	for _, m := range models {
		obsolete[m], obsolete[m+"-v1"] = true, true
	}
	return obsolete
}

// Image returns an image with the registry and the tag that a KubeVirt object specifies.
func Image(image string, spec *v1.KubeVirtSpec) string {
	return imageRef(image, spec.ImageRegistry, spec.ImageTag)
}

// Certificates are the lifetimes of certificates, and how long before their expiry they are renewed.
type Certificates struct {
	CADuration, CARenewBefore         time.Duration
	ServerDuration, ServerRenewBefore time.Duration
}

// renewFraction sets when certificates are renewed by default: when 1/renewFraction of their lifetime is left.
const renewFraction = 5

// Shorter lifetimes are raised to these.
const (
	// leastLifetime is the least lifetime of a certificate. Shorter ones would be renewed without a pause.
	leastLifetime = time.Minute
	// leastOverlap is the least CARenewBefore. A CA signs when half of it is over, and has to be trusted everywhere then.
	// The kubelet updates a mounted ConfigMap when it synchronizes the Pod, which is every 60 to 90 s. Source: kubernetes
	// pkg/kubelet/pod_workers.go, completeWork; the default of syncFrequency in the KubeletConfiguration.
	leastOverlap = 4 * time.Minute
	// leastAuthority is the least lifetime of a CA. It is a third of that old when it signs, and signs for another third.
	leastAuthority = 6 * time.Minute
)

// lifetimeFields are the fields of one kind of certificate. The deprecated ones win, as in KubeVirt.
type lifetimeFields struct {
	duration, renewBefore         *metav1.Duration
	durationPath, renewBeforePath *field.Path
}

func (p *parser) certificates(s *v1.KubeVirtSelfSignConfiguration, path *field.Path) {
	if old := s.CARotateInterval != nil || s.CertRotateInterval != nil ||
		s.CAOverlapInterval != nil; old && (s.CA != nil || s.Server != nil) {
		p.errs = append(p.errs,
			field.Forbidden(path, "caRotateInterval, certRotateInterval and caOverlapInterval are deprecated and "+
				"conflict with CertConfig defined rotation parameters. Keep ca and server."))
	}
	c := &p.config.Certificates
	p.lifetime(lifetimesOf(s.CA, path.Child("ca")).override(s.CARotateInterval, path.Child("caRotateInterval"),
		s.CAOverlapInterval, path.Child("caOverlapInterval")), &c.CADuration, &c.CARenewBefore)
	c.CADuration, c.CARenewBefore = max(c.CADuration, leastAuthority), max(c.CARenewBefore, leastOverlap)
	server := lifetimesOf(s.Server, path.Child("server")).override(s.CertRotateInterval, path.Child("certRotateInterval"),
		nil, nil)
	p.lifetime(server, &c.ServerDuration, &c.ServerRenewBefore)
	if c.ServerDuration > c.CADuration {
		p.errs = append(p.errs, field.Invalid(server.durationPath, c.ServerDuration.String(),
			fmt.Sprintf("Certificate duration cannot exceed CA, which lasts %s", c.CADuration)))
		c.ServerDuration, c.ServerRenewBefore = c.CADuration, c.CADuration/renewFraction
	}
}

func lifetimesOf(s *v1.CertConfig, path *field.Path) lifetimeFields {
	f := lifetimeFields{durationPath: path.Child("duration"), renewBeforePath: path.Child("renewBefore")}
	if s != nil {
		f.duration, f.renewBefore = s.Duration, s.RenewBefore
	}
	return f
}

// override returns the fields with those that are set in place of their successors.
func (f lifetimeFields) override(
	duration *metav1.Duration, durationPath *field.Path, renewBefore *metav1.Duration, renewBeforePath *field.Path,
) lifetimeFields {
	if duration != nil {
		f.duration, f.durationPath = duration, durationPath
	}
	if renewBefore != nil {
		f.renewBefore, f.renewBeforePath = renewBefore, renewBeforePath
	}
	return f
}

// lifetime sets a lifetime and when to renew. An invalid duration keeps its default, an invalid renewBefore is a fifth
// of the duration.
func (p *parser) lifetime(f lifetimeFields, duration, renew *time.Duration) {
	if d := f.duration; d != nil && d.Duration <= 0 {
		p.errs = append(p.errs, field.Invalid(f.durationPath, d.Duration.String(), "must be greater than 0"))
	} else if d != nil {
		*duration = max(d.Duration, leastLifetime)
	}
	*renew = *duration / renewFraction
	r := f.renewBefore
	switch {
	case r == nil:
	case r.Duration > *duration:
		p.errs = append(p.errs, field.Invalid(f.renewBeforePath, r.Duration.String(),
			fmt.Sprintf("RenewBefore cannot exceed Duration, which is %s", *duration)))
	case r.Duration <= 0 || r.Duration == *duration:
		// KubeVirt accepts both, but 0 would renew after the expiry, and the duration permanently. Admission warns.
	default:
		*renew = r.Duration
	}
}

// RateLimit is the rate of a component's requests to the API server.
type RateLimit struct {
	// QPS is the number of requests per second that the component may send for long.
	QPS float32
	// Burst is the number of requests that it may send at once.
	Burst int
}

// RateLimits are the rates of each component. Webhook is that of the webhooks, which run in virt-controller.
type RateLimits struct{ API, Webhook, Controller, Handler RateLimit }

// defaultRateLimits returns KubeVirt's, but for an agent: it sends the requests for all guests of its node (ADR 46).
// Source: kubevirt/kubevirt pkg/virt-config, DefaultVirt*QPS and DefaultVirt*Burst.
func defaultRateLimits() RateLimits {
	usual := RateLimit{QPS: 200, Burst: 400}
	return RateLimits{API: usual, Webhook: usual, Controller: usual, Handler: usual}
}

func (p *parser) rateLimits(s *v1.KubeVirtConfiguration, path *field.Path) {
	limits := &p.config.RateLimits
	p.rateLimit(&limits.API, s.APIConfiguration, path.Child("apiConfiguration"))
	p.rateLimit(&limits.Webhook, s.WebhookConfiguration, path.Child("webhookConfiguration"))
	p.rateLimit(&limits.Controller, s.ControllerConfiguration, path.Child("controllerConfiguration"))
	p.rateLimit(&limits.Handler, s.HandlerConfiguration, path.Child("handlerConfiguration"))
}

// rateLimit sets the rate of a component. Zero means that the field is empty: nothing could be sent.
func (p *parser) rateLimit(limit *RateLimit, s *v1.ReloadableComponentConfiguration, path *field.Path) {
	if s == nil || s.RestClient == nil || s.RestClient.RateLimiter == nil ||
		s.RestClient.RateLimiter.TokenBucketRateLimiter == nil {
		return
	}
	bucket, path := s.RestClient.RateLimiter.TokenBucketRateLimiter,
		path.Child("restClient", "rateLimiter", "tokenBucketRateLimiter")
	switch qps := bucket.QPS; {
	case qps < 0:
		p.errs = append(p.errs, field.Invalid(path.Child("qps"), qps, "must be greater than 0"))
	case qps > 0:
		limit.QPS = qps
	}
	p.set(&limit.Burst, bucket.Burst, 1, 1<<30, path.Child("burst"))
}

// Pods returns the part of the configuration that launcher Pods depend on. KubeVirt's log levels start at 2, the
// launcher's at 0.
func (c Config) Pods() podspec.Config {
	return podspec.Config{
		LauncherImage:                      c.Images.Launcher,
		ImagePullPolicy:                    c.LauncherPullPolicy,
		Seccomp:                            c.LauncherSeccomp,
		RuntimeClass:                       c.DefaultRuntimeClass,
		Verbosity:                          c.Verbosity.Launcher - min(c.Verbosity.Launcher, DefaultVerbosity),
		UseEmulation:                       c.UseEmulation,
		DefaultArchitecture:                c.DefaultArchitecture,
		CPUAllocationRatio:                 c.CPUAllocationRatio,
		CPURequest:                         c.CPURequest,
		MemoryOvercommit:                   c.MemoryOvercommit,
		AdditionalGuestMemoryOverheadRatio: c.AdditionalGuestMemoryOverheadRatio,
		HotplugVolumes:                     c.HotplugVolumes,
		HotplugResources:                   c.HotplugResources,
		ImageReserveBytes:                  c.MinimumReservePVCBytes,
		ImageTolerateLessPercent:           c.PVCTolerateLessSpaceUpToPercent,
		ConsoleLogResources:                c.ConsoleLogResources,
		RestartsContainers:                 c.RestartsContainers,
		SkipBackupHooks:                    c.SkipBackupHooks,
		Live:                               c.LiveMetadata,
		NodeSelectors:                      c.NodeSelectors,
		MigrationNetwork:                   c.MigrationNetwork,
	}
}
