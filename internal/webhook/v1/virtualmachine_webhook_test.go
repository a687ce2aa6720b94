// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
)

type fixedConfig struct{ clusterconfig.Config }

func (f fixedConfig) Current() clusterconfig.Config { return f.Config }

// readers returns a finder of instance types and preferences.
func readers(objects ...client.Object) reference.Finder {
	scheme := runtime.NewScheme()
	utilruntime.Must(v1beta1.AddToScheme(scheme))
	utilruntime.Must(appsv1.AddToScheme(scheme))
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	return reference.Finder{Objects: c, Revisions: c}
}

// KubeVirt admits these VMs without a warning, and refuses their VMIs when they start.
func TestErrorsOfInstance(t *testing.T) {
	readOnly := withDisk(v1.Disk{Name: "data", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{ReadOnly: true}}},
		containerDisk())
	linux := &v1beta1.VirtualMachineClusterPreference{ObjectMeta: metav1.ObjectMeta{Name: "linux"}}
	linux.Spec.Devices = &v1beta1.DevicePreferences{PreferredDiskBus: v1.DiskBusVirtio}
	for _, tc := range []struct {
		name   string
		option specOption
		change func(*v1.VirtualMachine)
		want   string
	}{
		{"sound", withDisk(v1.Disk{Name: "data", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{}}}, containerDisk()), nil, ""},
		{"a read-only disk becomes a SATA disk", readOnly, nil,
			"spec.template.spec.domain.devices.disks[0].disk.bus keeps the VM from starting: sata hard-disks do not support read-only"},
		{"a machine type that only Red Hat's QEMU has", func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Machine = &v1.Machine{Type: "pc-q35-rhel9.4.0"}
		}, nil, "spec.template.spec.domain.machine.type: QEMU has the machine type pc-q35-rhel9.4.0 in Red Hat's distributions only: " +
			"a guest that starts gets pc-q35-8.2, the nearest to it"},
		{"a multicast address", func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", MacAddress: "01:00:5e:00:00:01"}}
			s.Networks = []v1.Network{{Name: "default", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}}
		}, nil, "spec.template.spec.domain.devices.interfaces[0].macAddress keeps the VM from starting: Invalid value: " +
			`"01:00:5e:00:00:01": is the address of a group: the first byte must be even`},
		{"a preference that does not exist may set the bus", readOnly, func(vm *v1.VirtualMachine) {
			vm.Spec.Preference = &v1.PreferenceMatcher{Name: "missing"}
		}, ""},
		{"a preference sets the bus", readOnly, func(vm *v1.VirtualMachine) {
			vm.Spec.Preference = &v1.PreferenceMatcher{Name: "linux"}
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := clusterconfig.Default()
			config.DefaultArchitecture = clusterconfig.ArchAMD64
			vm := newVM("vm", tc.option)
			vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
			if tc.change != nil {
				tc.change(vm)
			}
			before := vm.DeepCopy()
			warnings, err := (&vmValidator{config: fixedConfig{config}, finder: readers(linux)}).ValidateCreate(t.Context(), vm)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(warnings, "\n")
			if len(warnings) > 1 || tc.want == "" && got != "" || !strings.HasPrefix(got, tc.want) {
				t.Errorf("warnings %q, want one that begins with %q", warnings, tc.want)
			}
			if diff := cmp.Diff(before, vm); diff != "" {
				t.Errorf("the user's VM was changed: %s", diff)
			}
		})
	}
}

// TestHopelessInference checks the status of a VM from whose volume nothing can be inferred.
func TestHopelessInference(t *testing.T) {
	vm := newVM("vm")
	vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
	vm.Spec.Preference = &v1.PreferenceMatcher{InferFromVolume: "missing"}
	_, err := (&vmValidator{config: fixedConfig{clusterconfig.Default()}, finder: readers()}).ValidateCreate(t.Context(),
		vm)
	if !apierrors.IsBadRequest(err) || err.Error() != "unable to find volume missing to infer defaults" {
		t.Errorf("got %v", err)
	}
}

// TestInstancetypeOfVM checks that a VM is validated as it is with its instance type and its preference.
func TestInstancetypeOfVM(t *testing.T) {
	small := &v1beta1.VirtualMachineClusterInstancetype{ObjectMeta: metav1.ObjectMeta{Name: "small"}}
	small.Spec.CPU.Guest, small.Spec.Memory.Guest = 3, resource.MustParse("1Gi")
	small.Spec.CPU.IsolateEmulatorThread = ptr.To(true)
	sound := small.DeepCopy()
	sound.Name, sound.Spec.CPU.IsolateEmulatorThread = "sound", nil
	demanding := &v1beta1.VirtualMachineClusterPreference{ObjectMeta: metav1.ObjectMeta{Name: "demanding"}}
	demanding.Spec.Requirements = &v1beta1.PreferenceRequirements{CPU: &v1beta1.CPUPreferenceRequirement{Guest: 4}}
	spread := &v1beta1.VirtualMachineClusterPreference{ObjectMeta: metav1.ObjectMeta{Name: "spread"}}
	spread.Spec.CPU = &v1beta1.CPUPreferences{PreferredCPUTopology: ptr.To(v1beta1.Spread)}
	for name, tc := range map[string]struct {
		instancetype, preference string
		change                   func(*v1.VirtualMachineSpec)
		want                     []string
	}{
		"sound":             {instancetype: "sound"},
		"it does not exist": {instancetype: "missing"},
		"a conflict for each field": {
			instancetype: "sound",
			change: func(s *v1.VirtualMachineSpec) {
				s.Template.Spec.Domain.CPU = &v1.CPU{Sockets: 1, Cores: 1}
				s.Template.Spec.Domain.Memory = &v1.Memory{Guest: quantityOf("1Gi")}
			},
			want: []string{
				"spec.template.spec.domain.cpu.sockets: VM field(s) spec.template.spec.domain.cpu.sockets conflicts with selected instance type",
				"spec.template.spec.domain.cpu.cores: VM field(s) spec.template.spec.domain.cpu.cores conflicts with selected instance type",
				"spec.template.spec.domain.memory.guest: VM field(s) spec.template.spec.domain.memory.guest conflicts with selected instance type",
			},
		},
		"the rules of VMs apply to what an instance type sets": {
			instancetype: "small", want: []string{"spec.template.spec.domain.cpu.isolateEmulatorThread: "},
		},
		"a requirement that is not met": {
			instancetype: "sound", preference: "demanding",
			want: []string{"spec.instancetype: failure checking preference requirements: insufficient CPU resources of 3 vCPU provided by instance type, preference requires 4 vCPU"},
		},
		"CPUs that cannot be spread": {
			instancetype: "sound", preference: "spread",
			want: []string{"instancetype.spec.cpu.guest: 3 vCPUs provided by the instance type are not divisible by the "},
		},
		"an unknown kind": {
			instancetype: "sound", change: func(s *v1.VirtualMachineSpec) { s.Instancetype.Kind = "Pod" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := clusterconfig.Default()
			config.DefaultArchitecture = clusterconfig.ArchAMD64
			vm := newVM("vm")
			vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
			vm.Spec.Template.Spec.Domain.CPU, vm.Spec.Template.Spec.Domain.Memory = nil, nil
			vm.Spec.Template.Spec.Domain.Resources = v1.ResourceRequirements{}
			if tc.instancetype != "" {
				vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: tc.instancetype}
			}
			if tc.preference != "" {
				vm.Spec.Preference = &v1.PreferenceMatcher{Name: tc.preference}
			}
			if tc.change != nil {
				tc.change(&vm.Spec)
			}
			before := vm.DeepCopy()
			_, err := (&vmValidator{config: fixedConfig{config},
				finder: readers(small, sound, demanding, spread)}).ValidateCreate(t.Context(), vm)
			var got []string
			if status := apierrors.APIStatus(nil); errors.As(err, &status) {
				for _, cause := range status.Status().Details.Causes {
					got = append(got, cause.Field+": "+cause.Message)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			matches := func(got, want string) bool { // The API puts the value before the message.
				field, message, _ := strings.Cut(want, ": ")
				return strings.HasPrefix(got, field+": ") && strings.Contains(got, message)
			}
			if !slices.EqualFunc(got, tc.want, matches) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if diff := cmp.Diff(before, vm); diff != "" {
				t.Errorf("the user's VM was changed: %s", diff)
			}
		})
	}
}
