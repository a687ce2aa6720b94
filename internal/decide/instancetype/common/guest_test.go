// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package common_test

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
	"github.com/vireo-project/vireo/internal/decide/instancetype/common"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/specsupport"
	webhookv1 "github.com/vireo-project/vireo/internal/webhook/v1"
)

// unimplemented are the fields that Vireo does not implement yet, by the name of the preference that sets them.
// specsupport has the reasons.
var unimplemented = map[string][]string{
	"fedora.arm64":  {"spec.architecture"},
	"fedora.s390x":  {"spec.architecture"},
	"rhel.9.arm64":  {"spec.architecture"},
	"rhel.9.s390x":  {"spec.architecture"},
	"rhel.10.arm64": {"spec.architecture"},
	"rhel.10.s390x": {"spec.architecture"},
}

func instancetypeNamed(t *testing.T, name string) *v1beta1.VirtualMachineInstancetypeSpec {
	t.Helper()
	for _, object := range common.Instancetypes() {
		if object.Name == name {
			return &object.Spec
		}
	}
	t.Fatalf("no instance type %s", name)
	return nil
}

func preferenceNamed(t *testing.T, name string) *v1beta1.VirtualMachinePreferenceSpec {
	t.Helper()
	for _, object := range common.Preferences() {
		if object.Name == name {
			return &object.Spec
		}
	}
	t.Fatalf("no preference %s", name)
	return nil
}

func TestObjectsAreAdmitted(t *testing.T) {
	spec := field.NewPath("spec")
	for _, object := range common.Instancetypes() {
		if errs, warnings := instancetype.ValidateInstancetype(&object.Spec, spec); len(errs)+len(warnings) > 0 {
			t.Errorf("%s: %v %v", object.Name, errs, warnings)
		}
	}
	for _, object := range common.Preferences() {
		if errs, warnings := instancetype.ValidatePreference(&object.Spec, spec); len(errs)+len(warnings) > 0 {
			t.Errorf("%s: %v %v", object.Name, errs, warnings)
		}
	}
}

// volume is the name of the only volume of a minimal VM.
const volume = "root"

// expand applies an instance type and a preference to a VM that has a volume and nothing else.
func expand(
	t *testing.T, it *v1beta1.VirtualMachineInstancetypeSpec, preference *v1beta1.VirtualMachinePreferenceSpec,
) *v1.VirtualMachineInstance {
	t.Helper()
	template := &v1.VirtualMachineInstanceTemplateSpec{}
	template.Spec.Volumes = []v1.Volume{{
		Name: volume, VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "guest:1"}},
	}}
	expanded, conflicts := instancetype.Expand(template, it, preference)
	if len(conflicts) > 0 {
		t.Fatalf("conflicts: %v", conflicts.Paths("spec"))
	}
	vmi := &v1.VirtualMachineInstance{ObjectMeta: expanded.ObjectMeta, Spec: expanded.Spec}
	vmi.Name, vmi.Namespace, vmi.UID = "vm", "default", "7d9bdd2c-9e57-4c8f-a1d5-5a07b8f0a0b1"
	return vmi
}

// start admits a VMI and builds its launcher Pod, and returns the paths of what is unimplemented and the domain under
// emulation. The cluster has no feature gates but the one that another architecture needs.
func start(t *testing.T, vmi *v1.VirtualMachineInstance) (paths []string, built *libvirtxml.Domain, err error) {
	t.Helper()
	config := clusterconfig.Default()
	config.DefaultArchitecture = clusterconfig.ArchAMD64
	if arch := vmi.Spec.Architecture; arch != "" && arch != clusterconfig.ArchAMD64 {
		config.FeatureGates = clusterconfig.NewFeatureGates([]string{"MultiArchitecture"}, nil)
	}
	if errs := webhookv1.Admit(vmi, config); len(errs) > 0 {
		t.Errorf("admission: %v", errs.ToAggregate())
	}
	if _, err := podspec.Build(vmi,
		podspec.Config{LauncherImage: "launcher", CPUAllocationRatio: 10, StateClaim: "state"}); err != nil {
		t.Errorf("launcher Pod: %v", err)
	}
	for _, finding := range slices.Concat(
		specsupport.UnimplementedInVMI(field.NewPath("spec"), &vmi.Spec),
		specsupport.UnimplementedInAnnotations(field.NewPath("metadata"), vmi.Annotations),
	) {
		paths = append(paths, finding.Path.String())
	}
	built, err = domain.Build(vmi, factsOf(vmi))
	return paths, built, err
}

// factsOf returns the facts of an emulated node with enough CPUs for the largest instance type.
func factsOf(vmi *v1.VirtualMachineInstance) domain.Facts {
	facts := domain.Facts{
		Emulation: true, Arch: clusterconfig.ArchAMD64, MemBalloonStatsPeriod: 10,
		Disks: map[string]domain.DiskFact{volume: {
			Path: launcherpod.EphemeralDisksDir + "/root.qcow2", Format: "qcow2", BackingFormat: "raw",
			BackingPath: launcherpod.ContainerDiskDir(volume) + "/disk/disk.img", DirectIO: true, CapacityBytes: 1 << 20,
		}},
		Interfaces: map[string]domain.InterfaceFact{}, NUMACells: []domain.NUMACellFact{{}},
	}
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		facts.Interfaces[vmi.Spec.Domain.Devices.Interfaces[i].Name] = domain.InterfaceFact{Tap: "tap0",
			MAC: "02:00:00:00:00:01", MTU: 1450}
	}
	for id := range uint(128) {
		facts.CPUs = append(facts.CPUs, id)
		facts.NUMACells[0].CPUs = append(facts.NUMACells[0].CPUs, domain.CPUFact{ID: id, Siblings: []uint{id &^ 1, id | 1}})
	}
	return facts
}

// smallest returns the universal instance type with the least memory that a preference accepts.
func smallest(t *testing.T, preference *v1beta1.VirtualMachinePreferenceSpec) *v1beta1.VirtualMachineInstancetypeSpec {
	t.Helper()
	var accepted []*v1beta1.VirtualMachineInstancetypeSpec
	for _, object := range common.Instancetypes() {
		it := &object.Spec
		if !strings.HasPrefix(object.Name, "u1.") || instancetype.CheckTopology(it, preference) != nil ||
			instancetype.CheckRequirements(&v1.VirtualMachineInstanceSpec{}, it, preference) != nil {
			continue
		}
		accepted = append(accepted, it)
	}
	if len(accepted) == 0 {
		t.Fatal("no instance type of u1 meets the requirements")
	}
	return slices.MinFunc(accepted, func(a, b *v1beta1.VirtualMachineInstancetypeSpec) int {
		return cmp.Or(a.Memory.Guest.Cmp(b.Memory.Guest), cmp.Compare(a.CPU.Guest, b.CPU.Guest))
	})
}

func TestEveryPreferenceStartsAVM(t *testing.T) {
	left := map[string][]string{}
	for _, object := range common.Preferences() {
		t.Run(object.Name, func(t *testing.T) {
			// An instance type that is too small is reported elsewhere, and is no conflict.
			expand(t, instancetypeNamed(t, "u1.small"), &object.Spec)

			it := smallest(t, &object.Spec)
			vmi := expand(t, it, &object.Spec)
			paths, built, err := start(t, vmi)
			if len(paths) > 0 {
				left[object.Name] = paths
				var refused *field.Error
				if !errors.As(err, &refused) || !slices.Contains(paths, refused.Field) {
					t.Errorf("unimplemented are %v, and the domain's error is %v", paths, err)
				}
				return
			}
			if err != nil {
				t.Fatalf("domain: %v", err)
			}
			expectSize(t, built, it)
			if bus := built.Devices.Disks[0].Target.Bus; bus != string(object.Spec.Devices.PreferredDiskBus) {
				t.Errorf("the disk is on the bus %s, want %s", bus, object.Spec.Devices.PreferredDiskBus)
			}
			if model := built.Devices.Interfaces[0].Model.Type; !strings.HasPrefix(model,
				object.Spec.Devices.PreferredInterfaceModel) {
				t.Errorf("the interface is %s, want %s", model, object.Spec.Devices.PreferredInterfaceModel)
			}
		})
	}
	if diff := gocmp.Diff(unimplemented, left); diff != "" {
		t.Errorf("unimplemented (-list +found):\n%s", diff)
	}
}

func TestEveryInstancetypeStartsAVM(t *testing.T) {
	preference := preferenceNamed(t, "linux")
	for _, object := range common.Instancetypes() {
		t.Run(object.Name, func(t *testing.T) {
			paths, built, err := start(t, expand(t, &object.Spec, preference))
			if err != nil || len(paths) > 0 {
				t.Fatalf("unimplemented: %v, domain: %v", paths, err)
			}
			expectSize(t, built, &object.Spec)
			if pinned := built.CPUTune != nil && len(built.CPUTune.VCPUPin) == int(object.Spec.CPU.Guest); pinned !=
				(object.Spec.CPU.DedicatedCPUPlacement != nil) {
				t.Errorf("vCPUs are pinned: %t", pinned)
			}
		})
	}
}

// expectSize fails unless a domain has the vCPUs and the memory of an instance type.
func expectSize(t *testing.T, built *libvirtxml.Domain, it *v1beta1.VirtualMachineInstancetypeSpec) {
	t.Helper()
	present := built.VCPU.Current
	if present == 0 {
		present = built.VCPU.Value
	}
	if present != uint(it.CPU.Guest) {
		t.Errorf("%d vCPUs, want %d", present, it.CPU.Guest)
	}
	if got, want := int64(built.Memory.Value), it.Memory.Guest.Value()/1024; built.Memory.Unit != "KiB" || got != want {
		t.Errorf("memory is %d %s, want %d KiB", got, built.Memory.Unit, want)
	}
	if _, err := built.Marshal(); err != nil {
		t.Error(err)
	}
}
