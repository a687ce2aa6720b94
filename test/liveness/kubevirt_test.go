// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveness_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/network"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/controller/migration/workloadupdate"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/specsupport"
	webhookv1 "github.com/vireo-project/vireo/internal/webhook/v1"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

// runningGuest is the guest for which a domain is built.
const runningGuest = base + "architecture: amd64\n"

// configuredGuests are specs of VMIs on which the configuration of a cluster has an effect.
var configuredGuests = []string{
	runningGuest,
	`domain: {devices: {}}`,
	`domain: {memory: {guest: 1Gi, maxGuest: 2Gi}, devices: {}}`,
	`{domain: {devices: {interfaces: [{name: nic, bridge: {}}]}}, networks: [{name: nic, pod: {}}]}`,
	`{domain: {rebootPolicy: Terminate, devices: {}}}`,
	`{domain: {devices: {disks: [{name: disk, disk: {}}]}}, volumes: [{name: disk, hostDisk: {path: /disk.img, type: Disk}}]}`,
	`{architecture: amd64, domain: {machine: {type: q35}, devices: {}}}`,
	`{architecture: arm64, domain: {devices: {}}}`,
	`{architecture: arm64, domain: {machine: {type: virt}, devices: {}}}`,
	`{architecture: s390x, domain: {devices: {}}}`,
	`{architecture: s390x, domain: {machine: {type: s390-ccw-virtio}, devices: {}}}`,
}

// configurationScenes are fragments of a KubeVirt object's spec in which a field can have a meaning.
var configurationScenes = map[string]string{
	"configuration.autoCPULimitNamespaceLabelSelector.matchExpressions": `{configuration: {autoCPULimitNamespaceLabelSelector: {
      matchExpressions: [{key: a, operator: In, values: [b]}]}}}`,
	"configuration.changedBlockTrackingLabelSelectors.namespaceLabelSelector.matchExpressions": `{configuration: {
      changedBlockTrackingLabelSelectors: {namespaceLabelSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}}}}`,
	"configuration.changedBlockTrackingLabelSelectors.virtualMachineLabelSelector.matchExpressions": `{configuration: {
      changedBlockTrackingLabelSelectors: {virtualMachineLabelSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}}}}`,
	"customizeComponents.patches[]": `{customizeComponents: {patches: [{resourceType: Deployment, resourceName: virt-api, type: merge, patch: '
      {"spec":{"template":{"spec":{"containers":[{"name":"virt-api","image":"a"}]}}}}'}]}}`,
	"configuration.supportContainerResources[]": `{configuration: {supportContainerResources: [{type: guest-console-log}]}}`,
	"configuration.tlsConfiguration.ciphers":    `{configuration: {tlsConfiguration: {minTLSVersion: VersionTLS12}}}`,
}

// configurationValues are values of fields for which no sample of the type is valid.
var configurationValues = map[string]string{
	"imagePullPolicy": `Never`,
	"workloadUpdateStrategy.batchEvictionInterval":                                                             `7s`,
	"workloadUpdateStrategy.workloadUpdateMethods":                                                             `[Evict]`,
	"uninstallStrategy":                                                                                        `BlockUninstallIfWorkloadsExist`,
	"configuration.autoCPULimitNamespaceLabelSelector.matchExpressions[].operator":                             `NotIn`,
	"configuration.changedBlockTrackingLabelSelectors.namespaceLabelSelector.matchExpressions[].operator":      `NotIn`,
	"configuration.changedBlockTrackingLabelSelectors.virtualMachineLabelSelector.matchExpressions[].operator": `NotIn`,
	"configuration.additionalGuestMemoryOverheadRatio":                                                         `"1.7"`,
	"configuration.architectureConfiguration.defaultArchitecture":                                              `s390x`,
	"configuration.developerConfiguration.disabledFeatureGates":                                                `[RebootPolicy]`,
	"configuration.developerConfiguration.featureGates":                                                        `[HostDisk]`,
	"configuration.developerConfiguration.memoryOvercommit":                                                    `150`,
	"configuration.developerConfiguration.logVerbosity.nodeVerbosity":                                          `{node: 5}`,
	"configuration.evictionStrategy":                                                                           `LiveMigrate`,
	"configuration.imagePullPolicy":                                                                            `Never`,
	"configuration.network.defaultNetworkInterface":                                                            `masquerade`,
	"configuration.obsoleteCPUModels":                                                                          `{sample: true}`,
	"configuration.supportContainerResources[].resources.limits":                                               `{cpu: 70m}`,
	"configuration.supportContainerResources[].resources.requests":                                             `{cpu: 7m}`,
	"configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile.localhostProfile":          `vm.json`,
	"configuration.tlsConfiguration.ciphers":                                                                   `[TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]`,
	"configuration.tlsConfiguration.minTLSVersion":                                                             `VersionTLS13`,
	"configuration.vmRolloutStrategy":                                                                          `Stage`,
	"certificateRotateStrategy.selfSigned.caRotateInterval":                                                    `100h`,
	"certificateRotateStrategy.selfSigned.certRotateInterval":                                                  `7h`,
	"certificateRotateStrategy.selfSigned.caOverlapInterval":                                                   `7h`,
	"certificateRotateStrategy.selfSigned.ca.duration":                                                         `100h`,
	"certificateRotateStrategy.selfSigned.ca.renewBefore":                                                      `7h`,
	"certificateRotateStrategy.selfSigned.server.duration":                                                     `7h`,
	"certificateRotateStrategy.selfSigned.server.renewBefore":                                                  `3h`,
	"configuration.instancetype.referencePolicy":                                                               `expand`,
	"customizeComponents.patches[].patch":                                                                      `'{"spec":{"replicas":7}}'`,
	"customizeComponents.patches[].resourceName":                                                               `virt-controller`,
	"customizeComponents.patches[].resourceType":                                                               `DaemonSet`,
	"customizeComponents.patches[].type":                                                                       `strategic`,
}

// consumer is a package that reads a field of the configuration, and the name of the field there.
type consumer struct{ dir, name string }

// configurationConsumers are fields, or their parents, that change the resolved configuration, but nothing that is
// built from it before a guest runs.
var configurationConsumers = map[string]consumer{
	"uninstallStrategy":       {"internal/controller/install/kubevirt", "UninstallStrategy"},
	"monitorNamespace":        {"internal/controller/install/kubevirt/prometheus", "MonitorNamespace"},
	"monitorAccount":          {"internal/controller/install/kubevirt/prometheus", "MonitorAccount"},
	"serviceMonitorNamespace": {"internal/controller/install/kubevirt/prometheus", "ServiceMonitorNamespace"},

	"certificateRotateStrategy.selfSigned.caRotateInterval":   {"internal/certificate", "CADuration"},
	"certificateRotateStrategy.selfSigned.certRotateInterval": {"internal/certificate", "ServerDuration"},
	"certificateRotateStrategy.selfSigned.caOverlapInterval":  {"internal/certificate", "CARenewBefore"},
	"certificateRotateStrategy.selfSigned.ca.duration":        {"internal/certificate", "CADuration"},
	"certificateRotateStrategy.selfSigned.ca.renewBefore":     {"internal/certificate", "CARenewBefore"},
	"certificateRotateStrategy.selfSigned.server.duration":    {"internal/certificate", "ServerDuration"},
	"certificateRotateStrategy.selfSigned.server.renewBefore": {"internal/certificate", "ServerRenewBefore"},

	"configuration.apiConfiguration":                       {"cmd/virt-api/virtapi", "RateLimits"},
	"configuration.controllerConfiguration":                {"cmd/virt-controller/manager", "RateLimits"},
	"configuration.webhookConfiguration":                   {"cmd/virt-controller/manager", "RateLimits"},
	"configuration.handlerConfiguration":                   {"cmd/virt-handler/agent", "RateLimits"},
	"configuration.tlsConfiguration":                       {"internal/clusterconfig", "TLS"},
	"configuration.developerConfiguration.clusterProfiler": {"internal/component/profiler", "ClusterProfiler"},
	// It is also the default.
	"configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile.runtimeDefaultProfile": {"internal/clusterconfig", "RuntimeDefaultProfile"},

	"configuration.autoCPULimitNamespaceLabelSelector": {"internal/controller/virtualmachineinstance", "AutoCPULimitNamespaces"},
	// It has an effect on the status of VMIs of VMs only.
	"configuration.changedBlockTrackingLabelSelectors": {"internal/controller/virtualmachineinstance", "ChangedBlockTracking"},
	"configuration.instancetype.referencePolicy":       {"internal/controller/virtualmachine", "InstancetypeReferencePolicy"},
	"configuration.vmRolloutStrategy":                  {"internal/controller/virtualmachine", "RolloutStrategy"},
	// It has an effect on VMIs of VMs only.
	"configuration.liveUpdateConfiguration":       {"internal/webhook/v1", "LiveUpdate"},
	"configuration.commonInstancetypesDeployment": {"internal/controller/install/kubevirt", "CommonInstancetypes"},
	"configuration.obsoleteCPUModels":             {"internal/controller/install/node", "ObsoleteCPUModels"},
	"configuration.vmStateStorageClass":           {"internal/controller/virtualmachineinstance", "VMStateStorageClass"},

	"configuration.developerConfiguration.minimumReservePVCBytes":          {"internal/agent/vmi", "MinimumReservePVCBytes"},
	"configuration.developerConfiguration.pvcTolerateLessSpaceUpToPercent": {"internal/agent/vmi", "PVCTolerateLessSpaceUpToPercent"},

	"configuration.developerConfiguration.logVerbosity.virtAPI":        {"cmd/virt-api/virtapi", "API"},
	"configuration.developerConfiguration.logVerbosity.virtController": {"cmd/virt-controller/manager", "Controller"},
	"configuration.developerConfiguration.logVerbosity.virtHandler":    {"cmd/virt-handler/agent", "HandlerOn"},
	"configuration.developerConfiguration.logVerbosity.nodeVerbosity":  {"cmd/virt-handler/agent", "HandlerOn"},

	"configuration.migrations.nodeDrainTaintKey":                 {"internal/controller/migration/evacuation", "NodeDrainTaintKey"},
	"configuration.migrations.parallelOutboundMigrationsPerNode": {"internal/controller/migration/virtualmachineinstancemigration", "ParallelOutboundMigrationsPerNode"},
	"configuration.migrations.parallelMigrationsPerCluster":      {"internal/controller/migration/virtualmachineinstancemigration", "ParallelMigrationsPerCluster"},
	"configuration.migrations.allowAutoConverge":                 {"internal/agent/migrate/convergence", "AllowAutoConverge"},
	"configuration.migrations.allowPostCopy":                     {"internal/agent/migrate", "AllowPostCopy"},
	"configuration.migrations.bandwidthPerMigration":             {"internal/agent/migrate", "BandwidthPerMigration"},
	"configuration.migrations.allowWorkloadDisruption":           {"internal/agent/migrate/convergence", "AllowWorkloadDisruption"},
	"configuration.migrations.maxDowntimeMs":                     {"internal/agent/migrate/convergence", "MaxDowntimeMs"},
	"configuration.migrations.progressTimeout":                   {"internal/agent/migrate/convergence", "ProgressTimeout"},
	"configuration.migrations.unsafeMigrationOverride":           {"internal/agent/migrate", "UnsafeMigrationOverride"},
	"configuration.migrations.disableTLS":                        {"internal/agent/migrate", "DisableTLS"},
	"configuration.migrations.completionTimeoutPerGiB":           {"internal/decide/migration/policy", "CompletionTimeoutPerGiB"},
	"configuration.migrations.matchSELinuxLevelOnMigration":      {"internal/controller/migration/virtualmachineinstancemigration", "MatchSELinuxLevelOnMigration"},
	"configuration.migrations.utilityVolumesTimeout":             {"internal/controller/migration/virtualmachineinstancemigration", "UtilityVolumesTimeout"},
}

// TestOutcomeOfTheConfigurationIsStable checks that equal configurations have equal outcomes, as the next test assumes.
func TestOutcomeOfTheConfigurationIsStable(t *testing.T) {
	first, err := configurationOutcome(&v1.KubeVirt{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := configurationOutcome(&v1.KubeVirt{})
	if err != nil || first.made != second.made {
		t.Errorf("the same configuration has two outcomes:\n%s\n%s\n%v", first.made, second.made, err)
	}
}

// TestLivenessOfTheConfiguration tries every leaf of a KubeVirt object's spec.
func TestLivenessOfTheConfiguration(t *testing.T) {
	docs := wordsAboutTheConfiguration(t)
	leaves := leavesOf(reflect.TypeFor[v1.KubeVirtSpec]())
	for _, l := range leaves {
		t.Run(l.path, func(t *testing.T) {
			if !works(t, l) {
				return
			}
			parts := strings.Split(strings.ReplaceAll(l.path, "[]", ""), ".")
			// These names alone do not identify a field.
			parts = slices.DeleteFunc(parts,
				func(part string) bool { return part == "configuration" || part == "developerConfiguration" })
			if !slices.ContainsFunc(parts, func(part string) bool { return docs[part] }) {
				t.Errorf("docs/spec/kubevirt.md does not name it, and it has an effect")
			}
		})
	}
	for path := range configurationConsumers {
		if !slices.ContainsFunc(leaves, func(l leaf) bool { return isOrBelow(l.path, path) }) {
			t.Errorf("%s has a consumer but is no field", path)
		}
	}
}

// works reports whether a leaf has an effect. It fails the test if the outcome, the consumers and the table of
// unimplemented fields disagree.
func works(t *testing.T, l leaf) bool {
	t.Helper()
	resolved, noticed, err := tryConfiguration(l)
	by, isConsumed := consumerOf(l.path)
	row := configurationRow(l.path)
	switch {
	case noticed && isConsumed:
		t.Errorf("changes the outcome: it needs no consumer (%s)", by.dir)
	case noticed && row != nil && row.Effect == specsupport.Warn && len(row.Values) == 0:
		t.Errorf("changes the outcome, and is in the table of unimplemented fields: %s", row.Reason)
	case isConsumed && row != nil:
		t.Errorf("has a consumer (%s), and is in the table of unimplemented fields: %s", by.dir, row.Reason)
	case isConsumed && !resolved && !strings.HasSuffix(l.path, ".runtimeDefaultProfile") &&
		strings.HasPrefix(l.path, "configuration."):
		t.Errorf("does not change the resolved configuration: %v", err)
	case isConsumed && !reads(t, by):
		t.Errorf("%s does not read %s", by.dir, by.name)
	case !noticed && !isConsumed && row == nil:
		t.Errorf("has no effect: %v", err)
	}
	return noticed || isConsumed
}

// TestEachTypeOfSupportContainer checks that each type of configuration.supportContainerResources has an effect, or is
// named as one that has none. What a field of the list does depends on the type.
func TestEachTypeOfSupportContainer(t *testing.T) {
	without, err := configurationOutcome(&v1.KubeVirt{})
	if err != nil {
		t.Fatal(err)
	}
	for kind, by := range map[v1.SupportContainerType]consumer{
		v1.GuestConsoleLog:   {},
		v1.VMExport:          {"internal/controller/storage/virtualmachineexport", "ExporterResources"},
		v1.HotplugAttachment: {"internal/podspec", "HotplugResources"},
		v1.ContainerDisk:     {},
		v1.VirtioFS:          {},
		v1.SideCar:           {},
	} {
		kv := &v1.KubeVirt{}
		text := fmt.Sprintf(`{configuration: {supportContainerResources: [{type: %s, resources: {limits: {cpu: 70m}, requests: {cpu: 7m}}}]}}`, kind)
		if err := yaml.UnmarshalStrict([]byte(text), &kv.Spec); err != nil {
			t.Fatal(err)
		}
		with, err := configurationOutcome(kv)
		if err != nil {
			t.Fatal(err)
		}
		works := with.made != without.made
		if by.dir != "" {
			works = !reflect.DeepEqual(with.resolved, without.resolved) && reads(t, by)
		}
		ignored := len(specsupport.UnimplementedInKubeVirt(field.NewPath("spec"), &kv.Spec)) > 0
		if works == ignored {
			t.Errorf("%s has an effect: %t, and is named as one without: %t", kind, works, ignored)
		}
	}
}

func consumerOf(path string) (consumer, bool) {
	for prefix, by := range configurationConsumers {
		if isOrBelow(path, prefix) {
			return by, true
		}
	}
	return consumer{}, false
}

func configurationRow(path string) *specsupport.Field {
	for i := range specsupport.KubeVirtFields {
		if isOrBelow(path, specsupport.KubeVirtFields[i].Path) {
			return &specsupport.KubeVirtFields[i]
		}
	}
	return nil
}

// tryConfiguration reports whether a leaf changes the resolved configuration, and whether it changes the outcome.
func tryConfiguration(l leaf) (resolved, noticed bool, err error) {
	texts := samples(l.typ)
	if text, ok := configurationValues[l.path]; ok {
		texts = []string{text}
	}
	var errs []error
	for _, text := range texts {
		with, without := &v1.KubeVirt{}, &v1.KubeVirt{}
		for prefix, scene := range configurationScenes {
			if isOrBelow(l.path, prefix) {
				errs = append(errs, yaml.UnmarshalStrict([]byte(scene), &with.Spec),
					yaml.UnmarshalStrict([]byte(scene), &without.Spec))
			}
		}
		// Both have the parents of the leaf, so that only the leaf differs.
		at(reflect.ValueOf(&without.Spec), l.path)
		errs = append(errs, yaml.UnmarshalStrict([]byte(text), at(reflect.ValueOf(&with.Spec), l.path).Addr().Interface()))
		before, beforeErr := configurationOutcome(without)
		after, afterErr := configurationOutcome(with)
		errs = append(errs, beforeErr, afterErr)
		resolved = resolved || !reflect.DeepEqual(before.resolved, after.resolved)
		noticed = noticed || before.made != after.made
	}
	return resolved, noticed && errors.Join(errs...) == nil, errors.Join(errs...)
}

// madeOf has the resolved configuration of a KubeVirt object, and what is built from it.
type madeOf struct {
	resolved clusterconfig.Config
	made     string
}

func configurationOutcome(kv *v1.KubeVirt) (madeOf, error) {
	config, err := clusterconfig.FromKubeVirt(kv, clusterconfig.WithContainerRestarts(true),
		clusterconfig.WithImages(clusterconfig.Images{
			Launcher: "registry.example/launcher:1", Handler: "registry.example/handler:1", Broker: "registry.example/broker:1",
			API: "registry.example/api:1",
		}))
	if err != nil {
		return madeOf{}, err
	}
	installed, err := installedOutcome(&kv.Spec, config)
	if err != nil {
		return madeOf{}, err
	}
	var guests []any
	for _, spec := range configuredGuests {
		guest, err := guestUnder(config, spec)
		if err != nil {
			return madeOf{}, err
		}
		guests = append(guests, guest)
	}
	made, err := json.Marshal(map[string]any{
		"installed": installed, "guests": guests, "update": workloadupdate.StrategyOf(&kv.Spec.WorkloadUpdateStrategy),
	})
	return madeOf{config, string(made)}, err
}

// installedOutcome returns what is installed, and virt-controller's Deployment.
func installedOutcome(spec *v1.KubeVirtSpec, config clusterconfig.Config) (any, error) {
	settings := manifests.SettingsOf(spec, config)
	settings.Namespace, settings.KubeletRoot = "kubevirt", "/var/lib/kubelet"
	installed, err := manifests.Render(settings)
	if err != nil {
		return nil, err
	}
	for _, o := range installed {
		// It changes with the spec, and not with what a field does.
		unstructured.RemoveNestedField(o.Object, "metadata", "annotations", manifests.IdentifierAnnotation)
	}
	controller := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: manifests.ControllerName}}
	controller.Spec.Template.Spec.Containers = []corev1.Container{{Name: manifests.ControllerName,
		Image: "registry.example/controller:1"}}
	if err := manifests.ConfigureController(controller, spec, settings); err != nil {
		return nil, err
	}
	return map[string]any{"objects": installed, "controller": controller}, nil
}

// guestUnder returns a spec with its defaults, its errors, the launcher Pod and the domain with a configuration.
func guestUnder(config clusterconfig.Config, spec string) (any, error) {
	// Without an identity the guest would get a random one.
	vmi, err := specOf(`domain: {firmware: {uuid: 9d2f7f5c-1f3c-4b8e-8f0c-0d7c3d1a2b4e}}`, spec)
	if err != nil {
		return nil, err
	}
	if faults := webhookv1.Admit(vmi, config); len(faults) > 0 {
		return map[string]any{"spec": vmi.Spec, "faults": faults.ToAggregate().Error()}, nil
	}
	pod, err := podspec.Build(vmi, config.Pods())
	if err != nil {
		return nil, fmt.Errorf("launcher Pod: %w", err)
	}
	out := map[string]any{"spec": vmi.Spec, "annotations": vmi.Annotations, "pod": pod}
	if spec != runningGuest {
		return out, nil
	}
	plan, err := network.NewPlan(vmi)
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	disks, err := media.Prepare(context.Background(), launcherWith(libvirt.NewNode().Launcher("pod"), vmi), kubelet{},
		media.Limits{}, vmi)
	if err != nil {
		return nil, fmt.Errorf("media: %w", err)
	}
	interfaces := factsOf(disks, plan).Interfaces
	collected, err := facts.Collect(context.Background(), config, facts.Node{Arch: "amd64"}, nodeFiles{}, disks,
		interfaces)
	if err != nil {
		return nil, fmt.Errorf("facts: %w", err)
	}
	definition, err := domain.Build(vmi, collected)
	if err != nil {
		return nil, fmt.Errorf("domain: %w", err)
	}
	out["domain"], err = definition.Marshal()
	return out, err
}

// nodeFiles are the files of a node with all devices.
type nodeFiles struct{}

func (nodeFiles) HasDevice(context.Context, string) (bool, error) { return true, nil }
func (nodeFiles) DirectIO(context.Context, string) (bool, error)  { return true, nil }
func (nodeFiles) CPUs(context.Context) ([]uint, error)            { return []uint{0, 1}, nil }
func (nodeFiles) BlockSizes(context.Context, string) (none facts.BlockSizes, err error) {
	return none, nil
}

// reads reports whether a package has a selector expression with the name.
func reads(t *testing.T, by consumer) bool {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("..", "..", by.dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			selector, ok := n.(*ast.SelectorExpr)
			found = found || ok && selector.Sel.Name == by.name
			return !found
		})
	}
	return found
}

// wordsAboutTheConfiguration returns the words of the table in docs/spec/kubevirt.md that lists the fields with an
// effect.
func wordsAboutTheConfiguration(t *testing.T) map[string]bool {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "spec", "kubevirt.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(raw), "## What has an effect")
	table, _, _ = strings.Cut(table, "\n## ")
	if !found {
		t.Fatal("docs/spec/kubevirt.md does not say what has an effect")
	}
	words := map[string]bool{}
	for _, word := range strings.FieldsFunc(table, func(r rune) bool { return !unicode.IsLetter(r) }) {
		words[word] = true
	}
	return words
}
