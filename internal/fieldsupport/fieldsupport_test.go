// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package fieldsupport

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// implementedKubeVirt are the fields of a KubeVirt object's spec that something makes work.
var implementedKubeVirt = []string{
	"imageTag", "imageRegistry", "imagePullPolicy", "imagePullSecrets", "uninstallStrategy", "workloads.nodePlacement",
	"customizeComponents.flags.handler", "customizeComponents.flags.api",
	"configuration.cpuModel", "configuration.cpuRequest", "configuration.emulatedMachines", "configuration.imagePullPolicy",
	"configuration.machineType", "configuration.defaultRuntimeClass", "configuration.vmStateStorageClass", "configuration.smbios", "configuration.evictionStrategy",
	"configuration.additionalGuestMemoryOverheadRatio", "configuration.memBalloonStatsPeriod", "configuration.obsoleteCPUModels",
	"configuration.virtualMachineInstancesPerNode", "configuration.virtualMachineOptions", "configuration.vmRolloutStrategy",
	"configuration.supportContainerResources[].resources",
	"configuration.autoCPULimitNamespaceLabelSelector",
	"configuration.network.defaultNetworkInterface", "configuration.network.permitBridgeInterfaceOnPodNetwork",
	"configuration.architectureConfiguration.defaultArchitecture",
	"configuration.architectureConfiguration.amd64.emulatedMachines", "configuration.architectureConfiguration.amd64.machineType",
	"configuration.architectureConfiguration.arm64.emulatedMachines", "configuration.architectureConfiguration.arm64.machineType",
	"configuration.architectureConfiguration.s390x.emulatedMachines", "configuration.architectureConfiguration.s390x.machineType",
	"configuration.developerConfiguration.featureGates", "configuration.developerConfiguration.disabledFeatureGates",
	"configuration.developerConfiguration.pvcTolerateLessSpaceUpToPercent", "configuration.developerConfiguration.minimumReservePVCBytes",
	"configuration.developerConfiguration.memoryOvercommit", "configuration.developerConfiguration.nodeSelectors",
	"configuration.developerConfiguration.useEmulation", "configuration.developerConfiguration.cpuAllocationRatio",
	"configuration.developerConfiguration.logVerbosity.virtController", "configuration.developerConfiguration.logVerbosity.virtHandler",
	"configuration.developerConfiguration.logVerbosity.virtAPI",
	"configuration.developerConfiguration.logVerbosity.virtLauncher", "configuration.developerConfiguration.logVerbosity.nodeVerbosity",
	"configuration.migrations.nodeDrainTaintKey", "configuration.migrations.parallelOutboundMigrationsPerNode", "configuration.migrations.parallelMigrationsPerCluster",
	"configuration.migrations.allowAutoConverge", "configuration.migrations.bandwidthPerMigration", "configuration.migrations.completionTimeoutPerGiB",
	"configuration.migrations.maxDowntimeMs", "configuration.migrations.progressTimeout", "configuration.migrations.unsafeMigrationOverride",
	"configuration.migrations.allowPostCopy", "configuration.migrations.allowWorkloadDisruption", "configuration.migrations.disableTLS", "configuration.migrations.network",
	"configuration.migrations.matchSELinuxLevelOnMigration",
	"workloadUpdateStrategy.workloadUpdateMethods", "workloadUpdateStrategy.batchEvictionSize", "workloadUpdateStrategy.batchEvictionInterval",
}

// withoutSwitch are fields in which there is nothing to decide on but a switch that is not implemented.
var withoutSwitch = []string{
	"configuration.commonInstancetypesDeployment", "configuration.virtTemplateDeployment", "configuration.persistentReservationConfiguration",
}

// TestEveryFieldIsDecidedOn keeps a field of the configuration from being passed over in silence. Those of a VMI are held
// against what the product makes of them, by test/liveness.
func TestEveryFieldIsDecidedOn(t *testing.T) {
	for _, tc := range []struct {
		name        string
		typ         reflect.Type
		implemented []string
		not         []Field
	}{
		{"KubeVirt", reflect.TypeFor[v1.KubeVirtSpec](), implementedKubeVirt, KubeVirt},
	} {
		t.Run(tc.name, func(t *testing.T) {
			decided := slices.Concat(tc.implemented, withoutSwitch)
			for _, entry := range tc.not {
				decided = append(decided, entry.Path)
			}
			expectDecided(t, tc.typ, decided)
		})
	}
}

// The page about the kind names what has an effect: each field, or one that it is a part of.
func TestTheDocsNameEveryFieldThatWorks(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "spec", "kubevirt.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(raw), "## What has an effect")
	table, _, _ = strings.Cut(table, "\n## ")
	if !found {
		t.Fatal("docs/spec/kubevirt.md does not say what has an effect")
	}
	named := map[string]bool{}
	for _, word := range strings.FieldsFunc(table, func(r rune) bool { return !unicode.IsLetter(r) }) {
		named[word] = true
	}
	for _, path := range implementedKubeVirt {
		parts := strings.Split(strings.ReplaceAll(path, "[]", ""), ".")
		// These are named for a few of their fields.
		parts = slices.DeleteFunc(parts, func(part string) bool { return part == "configuration" || part == "developerConfiguration" })
		if !slices.ContainsFunc(parts, func(part string) bool { return named[part] }) {
			t.Errorf("docs/spec/kubevirt.md does not name spec.%s, which has an effect", path)
		}
	}
}

func expectDecided(t *testing.T, typ reflect.Type, decided []string) {
	t.Helper()
	used := map[string]bool{}
	// What lies below may be decided on its own, such as one option of a device.
	below := func(path string) bool {
		return slices.ContainsFunc(decided, func(d string) bool { return strings.HasPrefix(d, path+".") || strings.HasPrefix(d, path+"[]") })
	}
	walkFields(typ, "", func(path string) bool {
		if slices.Contains(decided, path) {
			used[path] = true
			return below(path)
		}
		if below(path) {
			return true
		}
		if !slices.ContainsFunc(decided, func(d string) bool { return strings.HasPrefix(path, d+".") }) {
			t.Errorf("spec.%s is neither implemented nor on the list of what is not", path)
		}
		return false
	})
	for _, d := range decided {
		if !used[d] {
			t.Errorf("spec.%s is on a list but not in the API", d)
		}
	}
}

// walkFields calls visit for each field by its JSON path and goes deeper while visit says so.
func walkFields(t reflect.Type, prefix string, visit func(string) bool) {
	suffix := ""
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice {
			suffix = "[]"
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	if suffix != "" {
		prefix += suffix
	}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && strings.Contains(options, "inline") {
			walkFields(f.Type, prefix, visit)
			continue
		}
		if name == "" || name == "-" {
			continue
		}
		path := name
		if prefix != "" {
			path = prefix + "." + name
		}
		if visit(path) {
			walkFields(f.Type, path, visit)
		}
	}
}

func TestTablesNameFieldsOfTheAPI(t *testing.T) {
	for _, tc := range []struct {
		name  string
		typ   reflect.Type
		table []Field
	}{
		{"VirtualMachineInstance", reflect.TypeFor[v1.VirtualMachineInstanceSpec](), VMI},
		{"VirtualMachine", reflect.TypeFor[v1.VirtualMachineSpec](), VM},
		{"KubeVirt", reflect.TypeFor[v1.KubeVirtSpec](), KubeVirt},
		{"VirtualMachineInstanceMigration", reflect.TypeFor[v1.VirtualMachineInstanceMigrationSpec](), Migration},
	} {
		paths := map[string]bool{}
		walkFields(tc.typ, "", func(path string) bool {
			paths[path] = true
			return strings.Count(path, ".") < 5
		})
		for _, entry := range tc.table {
			if !paths[entry.Path] {
				t.Errorf("%s has no field spec.%s", tc.name, entry.Path)
			}
		}
	}
}

func TestInVMI(t *testing.T) {
	type option = func(*v1.VirtualMachineInstanceSpec)
	cdrom := func(readonly bool) option {
		return func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.Disks = []v1.Disk{{Name: "cd", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{ReadOnly: &readonly}}}}
		}
	}
	for _, tc := range []struct {
		name    string
		option  option
		refused []string
		warned  []string
	}{
		{"nothing", func(*v1.VirtualMachineInstanceSpec) {}, nil, nil},
		{"turned off", func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.DownwardMetrics = nil }, nil, nil},
		{"one element of a list", func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.GPUs = []v1.GPU{{Name: "a"}}
			s.Volumes = []v1.Volume{{Name: "b"}, {Name: "c", VolumeSource: v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{}}}}
		}, []string{"spec.domain.devices.gpus: Forbidden: ", "spec.volumes[1].memoryDump: Forbidden: "}, nil},
		{"a value", func(s *v1.VirtualMachineInstanceSpec) { s.Architecture = "arm64" }, []string{"spec.architecture: Forbidden: "}, nil},
		{"another value", func(s *v1.VirtualMachineInstanceSpec) { s.Architecture = "amd64" }, nil, nil},
		{"false where it is asked for in vain", cdrom(false), nil, []string{"spec.domain.devices.disks[0].cdrom.readonly has no effect: "}},
		{"true, which is the default", cdrom(true), nil, nil},
		{"an empty choice", func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.DownwardMetrics = &v1.DownwardMetrics{} },
			[]string{"spec.domain.devices.downwardMetrics: Forbidden: "}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := &v1.VirtualMachineInstanceSpec{}
			tc.option(spec)
			found := InVMI(field.NewPath("spec"), spec)
			var refused, warned []string
			for _, err := range Refusals(found) {
				refused = append(refused, err.Error())
			}
			for _, f := range found {
				if f.Field.Effect == Warn {
					warned = append(warned, f.String())
				}
			}
			expectPrefixes(t, refused, tc.refused)
			expectPrefixes(t, warned, tc.warned)
		})
	}
}

func TestInVM(t *testing.T) {
	spec := &v1.VirtualMachineSpec{
		RunStrategy:           ptr.To(v1.RunStrategyWaitAsReceiver),
		UpdateVolumesStrategy: ptr.To(v1.UpdateVolumesStrategyMigration),
		Template:              &v1.VirtualMachineInstanceTemplateSpec{},
	}
	spec.Template.Spec.Domain.Devices.DownwardMetrics = &v1.DownwardMetrics{}
	expectPrefixes(t, Sentences(InVM(field.NewPath("spec"), spec)), []string{
		"spec.runStrategy keeps the VM from starting: ",
		"spec.template.spec.domain.devices.downwardMetrics keeps the VM from starting: ",
	})
}

func expectPrefixes(t *testing.T, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("got %q, want %q", got[i], want[i])
		}
	}
}
