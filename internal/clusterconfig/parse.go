// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Option changes the defaults that the KubeVirt object overrides.
type Option func(*Config)

// WithImages sets the images. The KubeVirt object can override their registry and tag.
func WithImages(images Images) Option {
	return func(c *Config) { c.Images = images }
}

// WithContainerRestarts sets Config.RestartsContainers.
func WithContainerRestarts(able bool) Option {
	return func(c *Config) { c.RestartsContainers = able }
}

// WithLiveMetadata sets Config.LiveMetadata.
func WithLiveMetadata(live podspec.LiveMetadata) Option {
	return func(c *Config) { c.LiveMetadata = live }
}

// FromKubeVirt resolves a KubeVirt object. A nil object results in the defaults. The default architecture of its status
// stays until the spec sets another, so that it does not depend on the node of the process. The error is an aggregate
// with the path of each invalid field; these fields keep their defaults, and the returned Config is usable.
func FromKubeVirt(kv *v1.KubeVirt, options ...Option) (Config, error) {
	c := Default()
	for _, o := range options {
		o(&c)
	}
	if kv == nil {
		return c, nil
	}
	c.KubeVirt, c.UID, c.Generation = kv.Name, kv.UID, kv.Generation
	if _, known := c.Architectures[kv.Status.DefaultArchitecture]; known {
		c.DefaultArchitecture = kv.Status.DefaultArchitecture
	}

	p := parser{config: &c}
	p.spec(&kv.Spec, field.NewPath("spec"))
	p.configuration(&kv.Spec.Configuration, field.NewPath("spec", "configuration"))
	c.MigrationNetwork = migrationNetwork(kv.Namespace, c.Migrations.Network)
	c.SkipBackupHooks = podspec.SkipsBackupHooks(kv.Annotations)
	_, even := kv.Annotations[v1.EmulatorThreadCompleteToEvenParity]
	c.HotplugVolumes = c.FeatureGates.IsEnabled(GateDeclarativeHotplug) || c.FeatureGates.IsEnabled(GateHotplug)
	c.AlignCPUs = even && c.FeatureGates.IsEnabled(GateAlignCPUs)
	return c, p.errs.ToAggregate()
}

// parser overrides a Config with a KubeVirt object and collects the errors of invalid fields.
type parser struct {
	config *Config
	errs   field.ErrorList
}

func (p *parser) spec(s *v1.KubeVirtSpec, path *field.Path) {
	p.config.Images.Launcher = imageRef(p.config.Images.Launcher, s.ImageRegistry, s.ImageTag)
	p.config.Images.Handler = imageRef(p.config.Images.Handler, s.ImageRegistry, s.ImageTag)
	p.config.Images.Broker = imageRef(p.config.Images.Broker, s.ImageRegistry, s.ImageTag)
	p.config.Images.API = imageRef(p.config.Images.API, s.ImageRegistry, s.ImageTag)
	p.config.Images.Guestfs = imageRef(p.config.Images.Guestfs, s.ImageRegistry, s.ImageTag)
	p.config.Images.Exporter = imageRef(p.config.Images.Exporter, s.ImageRegistry, s.ImageTag)
	p.config.Images.ExportProxy = imageRef(p.config.Images.ExportProxy, s.ImageRegistry, s.ImageTag)
	p.config.ImagePullSecrets = s.ImagePullSecrets
	p.config.MigratesWorkloads = slices.Contains(s.WorkloadUpdateStrategy.WorkloadUpdateMethods,
		v1.WorkloadUpdateMethodLiveMigrate)
	p.pullPolicy(&p.config.ImagePullPolicy, s.ImagePullPolicy, path.Child("imagePullPolicy"))
	if self := s.CertificateRotationStrategy.SelfSigned; self != nil {
		p.certificates(self, path.Child("certificateRotateStrategy", "selfSigned"))
	}
}

func (p *parser) configuration(s *v1.KubeVirtConfiguration, path *field.Path) {
	c := p.config
	if s.DeveloperConfiguration != nil {
		p.developer(s.DeveloperConfiguration, path.Child("developerConfiguration"))
	}
	if s.NetworkConfiguration != nil {
		p.network(s.NetworkConfiguration, path.Child("network"))
	}
	p.architecture(s, path)
	p.pullPolicy(&c.LauncherPullPolicy, s.ImagePullPolicy, path.Child("imagePullPolicy"))
	p.cpuRequest(s.CPURequest, path.Child("cpuRequest"))
	p.overheadRatio(s.AdditionalGuestMemoryOverheadRatio, path.Child("additionalGuestMemoryOverheadRatio"))
	p.evictionStrategy(s.EvictionStrategy, path.Child("evictionStrategy"))

	c.CPUModel = s.CPUModel
	c.DefaultRuntimeClass = s.DefaultRuntimeClass
	c.VMStateStorageClass = s.VMStateStorageClass
	p.rolloutStrategy(s.VMRolloutStrategy, path.Child("vmRolloutStrategy"))
	p.liveUpdate(s.LiveUpdateConfiguration, path.Child("liveUpdateConfiguration"))
	p.tls(s.TLSConfiguration, path.Child("tlsConfiguration"))
	p.seccomp(s.SeccompConfiguration, path.Child("seccompConfiguration"))
	p.rateLimits(s, path)
	p.migrations(s.MigrationConfiguration, path.Child("migrations"))
	if s.MemBalloonStatsPeriod != nil {
		c.MemBalloonStatsPeriod = *s.MemBalloonStatsPeriod
	}
	if s.ObsoleteCPUModels != nil {
		c.ObsoleteCPUModels = s.ObsoleteCPUModels
	}
	if b := s.SMBIOSConfig; b != nil {
		c.SMBIOS = SMBIOS{
			Manufacturer: cmp.Or(b.Manufacturer, c.SMBIOS.Manufacturer), Product: cmp.Or(b.Product, c.SMBIOS.Product),
			Version: b.Version, SKU: b.Sku, Family: cmp.Or(b.Family, c.SMBIOS.Family),
		}
	}
	if o := s.VirtualMachineOptions; o != nil {
		c.DisableFreePageReporting = o.DisableFreePageReporting != nil
		c.DisableSerialConsoleLog = o.DisableSerialConsoleLog != nil
	}
	if i := s.Instancetype; i != nil && i.ReferencePolicy != nil {
		c.InstancetypeReferencePolicy = *i.ReferencePolicy
	}
	if d := s.CommonInstancetypesDeployment; d != nil && d.Enabled != nil {
		c.CommonInstancetypes = *d.Enabled
	}
	c.AutoCPULimitNamespaces = p.selector(s.AutoCPULimitNamespaceLabelSelector,
		path.Child("autoCPULimitNamespaceLabelSelector"))
	p.changedBlockTracking(s.ChangedBlockTrackingLabelSelectors, path.Child("changedBlockTrackingLabelSelectors"))
	for _, support := range s.SupportContainerResources {
		resources := corev1.ResourceRequirements{Requests: support.Resources.Requests, Limits: support.Resources.Limits}
		switch support.Type {
		case v1.GuestConsoleLog:
			c.ConsoleLogResources = resources
		case v1.VMExport:
			c.ExporterResources = resources
		case v1.HotplugAttachment:
			c.HotplugResources = resources
		}
	}
	p.positive(&c.VirtualMachineInstancesPerNode, s.VirtualMachineInstancesPerNode,
		path.Child("virtualMachineInstancesPerNode"))
}

func (p *parser) developer(d *v1.DeveloperConfiguration, path *field.Path) {
	c := p.config
	c.UseEmulation, c.ClusterProfiler = d.UseEmulation, d.ClusterProfiler
	if errs := metav1validation.ValidateLabels(d.NodeSelectors, path.Child("nodeSelectors")); len(errs) > 0 {
		p.errs = append(p.errs, errs...)
	} else {
		c.NodeSelectors = d.NodeSelectors
	}
	c.MinimumClusterTSCFrequency = d.MinimumClusterTSCFrequency
	p.gates(d, path)

	p.set(&c.PVCTolerateLessSpaceUpToPercent, d.LessPVCSpaceToleration, 0, 100,
		path.Child("pvcTolerateLessSpaceUpToPercent"))
	p.set(&c.CPUAllocationRatio, d.CPUAllocationRatio, 1, 1<<20, path.Child("cpuAllocationRatio"))
	// KubeVirt's schema has the lower bound.
	p.set(&c.MemoryOvercommit, d.MemoryOvercommit, 10, 1<<20, path.Child("memoryOvercommit"))
	if d.MinimumReservePVCBytes != 0 {
		c.MinimumReservePVCBytes = d.MinimumReservePVCBytes
	}
	if l := d.LogVerbosity; l != nil {
		c.Verbosity = Verbosity{
			API:        orDefault(l.VirtAPI),
			Controller: orDefault(l.VirtController),
			Handler:    orDefault(l.VirtHandler),
			Launcher:   orDefault(l.VirtLauncher),
			Operator:   orDefault(l.VirtOperator),
			Nodes:      l.NodeVerbosity,
		}
	}
}

func (p *parser) network(n *v1.NetworkConfiguration, path *field.Path) {
	switch n.NetworkInterface {
	case "":
	case InterfaceBridge, InterfaceMasquerade:
		p.config.Network.DefaultInterface = n.NetworkInterface
	default:
		p.errs = append(p.errs, field.NotSupported(path.Child("defaultNetworkInterface"), n.NetworkInterface,
			[]string{InterfaceBridge, InterfaceMasquerade}))
	}
	if n.PermitBridgeInterfaceOnPodNetwork != nil {
		p.config.Network.PermitBridgeOnPodNetwork = *n.PermitBridgeInterfaceOnPodNetwork
	}
}

func (p *parser) pullPolicy(target *corev1.PullPolicy, policy corev1.PullPolicy, path *field.Path) {
	switch policy {
	case "":
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
		*target = policy
	default:
		p.errs = append(p.errs, field.NotSupported(path, policy,
			[]corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}))
	}
}

// ignoredCPURequest is KubeVirt's default, which KubeVirt treats like an empty field.
var ignoredCPURequest = resource.MustParse("100m")

func (p *parser) cpuRequest(request *resource.Quantity, path *field.Path) {
	if request == nil || request.Cmp(ignoredCPURequest) == 0 {
		return
	}
	if request.Sign() <= 0 {
		p.errs = append(p.errs, field.Invalid(path, request.String(), "must be greater than 0"))
		return
	}
	p.config.CPURequest = request
}

func (p *parser) overheadRatio(ratio *string, path *field.Path) {
	if ratio == nil {
		return
	}
	value, err := strconv.ParseFloat(*ratio, 64)
	if err != nil || math.IsNaN(value) || value < 1 || value > 1<<10 {
		p.errs = append(p.errs, field.Invalid(path, *ratio, "must be a decimal number from 1.0 to 1024"))
		return
	}
	p.config.AdditionalGuestMemoryOverheadRatio = value
}

func (p *parser) rolloutStrategy(strategy *v1.VMRolloutStrategy, path *field.Path) {
	if strategy == nil || *strategy == "" {
		return
	}
	supported := []v1.VMRolloutStrategy{v1.VMRolloutStrategyStage, v1.VMRolloutStrategyLiveUpdate}
	if !slices.Contains(supported, *strategy) {
		p.errs = append(p.errs, field.NotSupported(path, *strategy, supported))
		return
	}
	p.config.RolloutStrategy = *strategy
}

// liveUpdate sets what the configuration has; 0 is the default of the ratio, as in KubeVirt.
func (p *parser) liveUpdate(l *v1.LiveUpdateConfiguration, path *field.Path) {
	if l == nil {
		return
	}
	c := &p.config.LiveUpdate
	c.MaxRatio, c.MaxSockets = cmp.Or(l.MaxHotplugRatio, c.MaxRatio), ptr.Deref(l.MaxCpuSockets, 0)
	if l.MaxGuest != nil && l.MaxGuest.Sign() <= 0 {
		p.errs = append(p.errs, field.Invalid(path.Child("maxGuest"), l.MaxGuest.String(), "must be greater than 0"))
		return
	}
	c.MaxGuest = l.MaxGuest
}

func (p *parser) evictionStrategy(strategy *v1.EvictionStrategy, path *field.Path) {
	if strategy == nil || *strategy == "" {
		return
	}
	supported := []v1.EvictionStrategy{
		v1.EvictionStrategyNone, v1.EvictionStrategyLiveMigrate,
		v1.EvictionStrategyLiveMigrateIfPossible, v1.EvictionStrategyExternal,
	}
	if !slices.Contains(supported, *strategy) {
		p.errs = append(p.errs, field.NotSupported(path, *strategy, supported))
		return
	}
	p.config.EvictionStrategy = *strategy
}

// set sets a number within bounds. Zero means that the field is empty.
func (p *parser) set(target *int, value, least, most int, path *field.Path) {
	if value == 0 {
		return
	}
	if value < least || value > most {
		p.errs = append(p.errs, field.Invalid(path, value, fmt.Sprintf("must be from %d to %d", least, most)))
		return
	}
	*target = value
}

func (p *parser) positive(target, value *int, path *field.Path) {
	if value == nil {
		return
	}
	if *value < 1 {
		p.errs = append(p.errs, field.Invalid(path, *value, "must be at least 1"))
		return
	}
	*target = *value
}

func orDefault(level uint) uint {
	if level == 0 {
		return DefaultVerbosity
	}
	return level
}

// imageRef replaces the registry and the tag of an image. A tag that starts with an algorithm, such as sha256:…, is a
// digest.
func imageRef(image, registry, tag string) string {
	if image == "" || (registry == "" && tag == "") {
		return image
	}
	repository, separator, oldTag := splitImage(image)
	if registry != "" {
		name := repository[strings.LastIndex(repository, "/")+1:]
		repository = strings.TrimSuffix(registry, "/") + "/" + name
	}
	if tag == "" {
		return repository + separator + oldTag
	}
	if strings.Contains(tag, ":") {
		return repository + "@" + tag
	}
	return repository + ":" + tag
}

func splitImage(image string) (repository, separator, tag string) {
	if at := strings.Index(image, "@"); at >= 0 {
		return image[:at], "@", image[at+1:]
	}
	if colon := strings.LastIndex(image, ":"); colon > strings.LastIndex(image, "/") {
		return image[:colon], ":", image[colon+1:]
	}
	return image, "", ""
}

// SplitImage splits an image reference into registry (with path), name, and tag or digest.
func SplitImage(image string) (registry, name, tag string) {
	repository, _, tag := splitImage(image)
	if slash := strings.LastIndex(repository, "/"); slash >= 0 {
		return repository[:slash], repository[slash+1:], tag
	}
	return "", repository, tag
}
