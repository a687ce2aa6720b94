// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package specsupport

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestUnimplementedInAnnotations(t *testing.T) {
	found := UnimplementedInAnnotations(field.NewPath("metadata"), map[string]string{
		"team": "blue", v1.IgnitionAnnotation: "{}", HookSidecarAnnotation: "",
	})
	expectPrefixes(t, Warnings(found),
		[]string{"metadata.annotations[kubevirt.io/ignitiondata] keeps the VM from starting: "})
}

// Annotations that would change the guest are refused. Others only warn.
func TestAnnotationsOfKubeVirt(t *testing.T) {
	warningsFor := func(annotations map[string]string) []string {
		return Warnings(UnimplementedInAnnotations(field.NewPath("metadata"), annotations))
	}
	expectPrefixes(t, warningsFor(map[string]string{
		v1.CreateMigrationTarget: "false", v1.MemfdMemoryBackend: "true", v1.PauseGuestAgentProbesAnnotation: "true",
		v1.PlacePCIDevicesOnRootComplex: "true", v1.DisablePCIHole64: "true", v1.FreePageReportingDisabledAnnotation: "true",
	}), nil)
	expectPrefixes(t, warningsFor(map[string]string{v1.CreateMigrationTarget: "true"}),
		[]string{"metadata.annotations[kubevirt.io/create-migration-target] keeps the VM from starting: "})
	for key, value := range map[string]string{
		v1.MemfdMemoryBackend: "false", v1.PciTopologyVersionAnnotation: v1.PciTopologyVersionV3,
		v1.PciInterfaceSlotCountAnnotation:    "4",
		v1.KeepLauncherAfterFailureAnnotation: "true", v1.CustomLibvirtLogFiltersAnnotation: "1:*",
	} {
		expectPrefixes(t, warningsFor(map[string]string{key: value}), []string{"metadata.annotations[" + key + "] "})
		if refused := Refusals(UnimplementedInAnnotations(field.NewPath("metadata"), map[string]string{key: value})); len(
			refused) > 0 {
			t.Errorf("%v", refused)
		}
	}
}

func listOf(n int) field.ErrorList {
	var errs field.ErrorList
	for i := range n {
		errs = append(errs, field.Invalid(field.NewPath("list").Index(i), i, "is wrong"))
	}
	return errs
}

func TestLimitErrors(t *testing.T) {
	all := listOf(MaxErrors + 7)
	first := LimitErrors(all)
	if last := first[len(first)-1]; len(first) != MaxErrors || last.Field != "list[99]" ||
		!strings.Contains(last.Detail, "7 more faults") {
		t.Errorf("%d faults, the last is %v", len(first), first[len(first)-1])
	}
	if strings.Contains(all[MaxErrors-1].Error(), "more faults") {
		t.Error("the caller's list is changed")
	}
	if few := LimitErrors(listOf(MaxErrors)); len(few) != MaxErrors ||
		strings.Contains(few.ToAggregate().Error(), "more faults") {
		t.Errorf("%d faults of %d", len(few), MaxErrors)
	}
}

func TestJoinErrorsAndNewInvalid(t *testing.T) {
	if err := JoinErrors(nil); err != nil {
		t.Errorf("an empty list gives %v", err)
	}
	if err := JoinErrors(listOf(2)); err == nil || !strings.Contains(err.Error(), "list[1]") {
		t.Errorf("got %v", err)
	}
	var status apierrors.APIStatus
	err := NewInvalid(schema.GroupKind{Kind: "VirtualMachine"}, "vm", listOf(5*MaxErrors))
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || len(status.Status().Details.Causes) != MaxErrors {
		t.Errorf("got %v", err)
	}
}

// walkFields calls visit with the JSON path of each field, and descends into a field for which visit returns true.
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
		{"VirtualMachineInstance", reflect.TypeFor[v1.VirtualMachineInstanceSpec](), VMIFields},
		{"VirtualMachine", reflect.TypeFor[v1.VirtualMachineSpec](), VMFields},
		{"KubeVirt", reflect.TypeFor[v1.KubeVirtSpec](), KubeVirtFields},
		{"VirtualMachineInstanceMigration", reflect.TypeFor[v1.VirtualMachineInstanceMigrationSpec](), MigrationFields},
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

func TestUnimplementedInVMI(t *testing.T) {
	type option = func(*v1.VirtualMachineInstanceSpec)
	cdrom := func(readonly bool) option {
		return func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.Disks = []v1.Disk{{Name: "cd",
				DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{ReadOnly: &readonly}}}}
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
			s.Volumes = []v1.Volume{{Name: "b"},
				{Name: "c", VolumeSource: v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{}}}}
		}, []string{"spec.domain.devices.gpus: Forbidden: ", "spec.volumes[1].memoryDump: Forbidden: "}, nil},
		{"a value", func(s *v1.VirtualMachineInstanceSpec) { s.Architecture = "arm64" }, []string{"spec.architecture: Forbidden: "}, nil},
		{"another value", func(s *v1.VirtualMachineInstanceSpec) { s.Architecture = "amd64" }, nil, nil},
		{"false, which is not implemented", cdrom(false), nil, []string{"spec.domain.devices.disks[0].cdrom.readonly has no effect: "}},
		{"true, which is the default", cdrom(true), nil, nil},
		{"an empty choice", func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.DownwardMetrics = &v1.DownwardMetrics{} },
			[]string{"spec.domain.devices.downwardMetrics: Forbidden: "}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := &v1.VirtualMachineInstanceSpec{}
			tc.option(spec)
			found := UnimplementedInVMI(field.NewPath("spec"), spec)
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

func TestUnimplementedInVM(t *testing.T) {
	spec := &v1.VirtualMachineSpec{
		RunStrategy:           ptr.To(v1.RunStrategyWaitAsReceiver),
		UpdateVolumesStrategy: ptr.To(v1.UpdateVolumesStrategyMigration),
	}
	expectPrefixes(t, Warnings(UnimplementedInVM(field.NewPath("spec"), spec)),
		[]string{"spec.runStrategy keeps the VM from starting: "})
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

// TestWarningsAreCapped: the author of an object decides how many fields it sets.
func TestWarningsAreCapped(t *testing.T) {
	findings := make([]Finding, MaxErrors+7)
	for i := range findings {
		findings[i] = Finding{field.NewPath("spec", "list").Index(i), &Field{Reason: "nothing does that"}}
	}
	warnings := Warnings(findings)
	if len(warnings) != MaxErrors+1 || !strings.Contains(warnings[MaxErrors], "7 more fields") {
		t.Errorf("%d warnings, the last is %q", len(warnings), warnings[len(warnings)-1])
	}
}
