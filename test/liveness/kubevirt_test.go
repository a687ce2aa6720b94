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

	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/workloadupdate"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/fieldsupport"
	"github.com/vireo-project/vireo/internal/handler/facts"
	"github.com/vireo-project/vireo/internal/handler/hypervisor/fake"
	"github.com/vireo-project/vireo/internal/handler/media"
	"github.com/vireo-project/vireo/internal/handler/network"
	"github.com/vireo-project/vireo/internal/operator"
	"github.com/vireo-project/vireo/internal/podspec"
	webhookv1 "github.com/vireo-project/vireo/internal/webhook/v1"
)

// runningGuest is the one of which a domain is made.
const runningGuest = base + "architecture: amd64\n"

// configuredGuests are specs of VMIs that the configuration of a cluster makes something of.
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
	"configuration.supportContainerResources[]": `{configuration: {supportContainerResources: [{type: guest-console-log}]}}`,
}

// configurationValues are what a field is set to where no sample of its type will do.
var configurationValues = map[string]string{
	"imagePullPolicy": `Never`,
	"workloadUpdateStrategy.batchEvictionInterval":                                 `7s`,
	"workloadUpdateStrategy.workloadUpdateMethods":                                 `[Evict]`,
	"uninstallStrategy":                                                            `BlockUninstallIfWorkloadsExist`,
	"configuration.autoCPULimitNamespaceLabelSelector.matchExpressions[].operator": `NotIn`,
	"configuration.additionalGuestMemoryOverheadRatio":                             `"1.7"`,
	"configuration.architectureConfiguration.defaultArchitecture":                  `s390x`,
	"configuration.developerConfiguration.disabledFeatureGates":                    `[RebootPolicy]`,
	"configuration.developerConfiguration.featureGates":                            `[HostDisk]`,
	"configuration.developerConfiguration.memoryOvercommit":                        `150`,
	"configuration.developerConfiguration.logVerbosity.nodeVerbosity":              `{node: 5}`,
	"configuration.evictionStrategy":                                               `LiveMigrate`,
	"configuration.imagePullPolicy":                                                `Never`,
	"configuration.migrations.matchSELinuxLevelOnMigration":                        `false`,
	"configuration.network.defaultNetworkInterface":                                `masquerade`,
	"configuration.obsoleteCPUModels":                                              `{sample: true}`,
	"configuration.supportContainerResources[].resources.limits":                   `{cpu: 70m}`,
	"configuration.supportContainerResources[].resources.requests":                 `{cpu: 7m}`,
	"configuration.vmRolloutStrategy":                                              `Stage`,
}

// consumer is a package that reads a field of the configuration, and the name by which it does.
type consumer struct{ dir, name string }

// configurationConsumers are the fields, or what they lie below, that change what the configuration is resolved to but not what is made of it before
// anything runs.
var configurationConsumers = map[string]consumer{
	"uninstallStrategy": {"internal/controller/kubevirt", "UninstallStrategy"},

	"configuration.autoCPULimitNamespaceLabelSelector": {"internal/controller", "AutoCPULimitNamespaces"},
	"configuration.obsoleteCPUModels":                  {"internal/controller", "ObsoleteCPUModels"},
	"configuration.vmStateStorageClass":                {"internal/controller", "VMStateStorageClass"},

	"configuration.developerConfiguration.minimumReservePVCBytes":          {"internal/handler/reconciler", "MinimumReservePVCBytes"},
	"configuration.developerConfiguration.pvcTolerateLessSpaceUpToPercent": {"internal/handler/reconciler", "PVCTolerateLessSpaceUpToPercent"},

	"configuration.developerConfiguration.logVerbosity.virtAPI":        {"internal/virtapi", "API"},
	"configuration.developerConfiguration.logVerbosity.virtController": {"internal/manager", "Controller"},
	"configuration.developerConfiguration.logVerbosity.virtHandler":    {"internal/handler/agent", "HandlerOn"},
	"configuration.developerConfiguration.logVerbosity.nodeVerbosity":  {"internal/handler/agent", "HandlerOn"},

	"configuration.migrations.nodeDrainTaintKey":                 {"internal/controller", "NodeDrainTaintKey"},
	"configuration.migrations.parallelOutboundMigrationsPerNode": {"internal/controller/virtualmachineinstancemigration", "ParallelOutboundMigrationsPerNode"},
	"configuration.migrations.parallelMigrationsPerCluster":      {"internal/controller/virtualmachineinstancemigration", "ParallelMigrationsPerCluster"},
	"configuration.migrations.allowAutoConverge":                 {"internal/handler/handover", "AllowAutoConverge"},
	"configuration.migrations.allowPostCopy":                     {"internal/handler/handover", "AllowPostCopy"},
	"configuration.migrations.bandwidthPerMigration":             {"internal/handler/handover", "BandwidthPerMigration"},
	"configuration.migrations.allowWorkloadDisruption":           {"internal/handler/handover", "AllowWorkloadDisruption"},
	"configuration.migrations.maxDowntimeMs":                     {"internal/handler/handover", "MaxDowntimeMs"},
	"configuration.migrations.progressTimeout":                   {"internal/handler/handover", "ProgressTimeout"},
	"configuration.migrations.unsafeMigrationOverride":           {"internal/handler/handover", "UnsafeMigrationOverride"},
	"configuration.migrations.disableTLS":                        {"internal/handler/handover", "DisableTLS"},
	"configuration.migrations.matchSELinuxLevelOnMigration":      {"internal/controller/virtualmachineinstancemigration", "MatchSELinuxLevelOnMigration"},
	"configuration.migrations.completionTimeoutPerGiB":           {"internal/migrationpolicy", "CompletionTimeoutPerGiB"},
}

// TestOutcomeOfTheConfigurationIsStable keeps the next from seeing differences that are none.
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
			// These are named for a few of their fields.
			parts = slices.DeleteFunc(parts, func(part string) bool { return part == "configuration" || part == "developerConfiguration" })
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

// works says whether a leaf has an effect, by what the product makes of it or by the table of what has none.
func works(t *testing.T, l leaf) bool {
	t.Helper()
	resolved, noticed, err := tryConfiguration(l)
	by, isConsumed := consumerOf(l.path)
	row := configurationRow(l.path)
	switch {
	case noticed && isConsumed:
		t.Errorf("changes the outcome: it needs no consumer (%s)", by.dir)
	case noticed && row != nil && row.Effect == fieldsupport.Warn && len(row.Values) == 0:
		t.Errorf("changes the outcome, and is on the table of what is not implemented: %s", row.Reason)
	case isConsumed && row != nil:
		t.Errorf("has a consumer (%s), and is on the table of what is not implemented: %s", by.dir, row.Reason)
	case isConsumed && !resolved && strings.HasPrefix(l.path, "configuration."):
		t.Errorf("does not change what the configuration is resolved to: %v", err)
	case isConsumed && !reads(t, by):
		t.Errorf("%s does not read %s", by.dir, by.name)
	case !noticed && !isConsumed && row == nil:
		t.Errorf("nothing notices it: %v", err)
	}
	return noticed || isConsumed
}

func consumerOf(path string) (consumer, bool) {
	for prefix, by := range configurationConsumers {
		if isOrBelow(path, prefix) {
			return by, true
		}
	}
	return consumer{}, false
}

func configurationRow(path string) *fieldsupport.Field {
	for i := range fieldsupport.KubeVirt {
		if isOrBelow(path, fieldsupport.KubeVirt[i].Path) {
			return &fieldsupport.KubeVirt[i]
		}
	}
	return nil
}

// tryConfiguration says whether a leaf changes what the configuration is resolved to, and whether it changes the outcome.
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
				errs = append(errs, yaml.UnmarshalStrict([]byte(scene), &with.Spec), yaml.UnmarshalStrict([]byte(scene), &without.Spec))
			}
		}
		// What lies above the leaf is in both, so that the leaf alone makes the difference.
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

// madeOf is what a KubeVirt object is resolved to, and what is made of that.
type madeOf struct {
	resolved clusterconfig.Config
	made     string
}

func configurationOutcome(kv *v1.KubeVirt) (madeOf, error) {
	config, err := clusterconfig.FromKubeVirt(kv, clusterconfig.WithContainerRestarts(true), clusterconfig.WithImages(clusterconfig.Images{
		Launcher: "registry.example/launcher:1", Handler: "registry.example/handler:1", API: "registry.example/api:1",
	}))
	if err != nil {
		return madeOf{}, err
	}
	settings := operator.Settings{Namespace: "kubevirt", KubeletRoot: "/var/lib/kubelet", Config: config}
	if kv.Spec.Workloads != nil {
		settings.Workloads = kv.Spec.Workloads.NodePlacement
	}
	if flags := kv.Spec.CustomizeComponents.Flags; flags != nil {
		settings.HandlerFlags, settings.APIFlags = flags.Handler, flags.API
	}
	installed, err := operator.Render(settings)
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

// guestUnder is what becomes of a guest: its spec with the defaults, what admission says, the launcher Pod, and the domain.
func guestUnder(config clusterconfig.Config, spec string) (any, error) {
	// A guest without this identity gets one by chance.
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
	disks, err := media.Prepare(context.Background(), launcherWith(fake.NewNode().Launcher("pod"), vmi), kubelet{}, media.Limits{}, vmi)
	if err != nil {
		return nil, fmt.Errorf("media: %w", err)
	}
	interfaces := factsOf(disks, plan).Interfaces
	definition, err := domain.Build(vmi, facts.Collect(context.Background(), config, facts.Node{Arch: "amd64"}, nodeFiles{}, disks, interfaces))
	if err != nil {
		return nil, fmt.Errorf("domain: %w", err)
	}
	out["domain"], err = definition.Marshal()
	return out, err
}

// nodeFiles are those of a node that has everything.
type nodeFiles struct{}

func (nodeFiles) HasDevice(context.Context, string) bool                     { return true }
func (nodeFiles) DirectIO(context.Context, string) bool                      { return true }
func (nodeFiles) CPUs(context.Context) []uint                                { return []uint{0, 1} }
func (nodeFiles) BlockSizes(context.Context, string) (none facts.BlockSizes) { return none }

// reads says whether a package has an expression that selects the name.
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

// wordsAboutTheConfiguration are the words of the table in which the page about the kind says what has an effect.
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
