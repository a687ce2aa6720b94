// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	poolapi "github.com/vireo-project/vireo/api/pool"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// named has a volume of each kind that names an object.
func named(s *poolv1.VirtualMachinePoolSpec) {
	reference := func(name string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: name} }
	volumes := &s.VirtualMachineTemplate.Spec.Template.Spec.Volumes
	for name, source := range map[string]v1.VolumeSource{
		"claim": {PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "root"},
		}},
		"shared claim": {PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "shared"},
		}},
		"shared": {DataVolume: &v1.DataVolumeSource{Name: "shared"}},
		"config": {ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: *reference("config")}},
		"secret": {Secret: &v1.SecretVolumeSource{SecretName: "secret"}},
		"init": {CloudInitNoCloud: &v1.CloudInitNoCloudSource{
			UserDataSecretRef: reference("user"), NetworkDataSecretRef: reference("net"),
		}},
		"drive":   {CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{UserDataSecretRef: reference("user")}},
		"sysprep": {Sysprep: &v1.SysprepSource{Secret: reference("sysprep")}},
	} {
		*volumes = append(*volumes, v1.Volume{Name: name, VolumeSource: source})
	}
}

func TestRender(t *testing.T) {
	for _, tc := range []struct {
		name                string
		configMaps, secrets *bool
		want                map[string][]string
	}{
		{"DataVolumes always", nil, nil, map[string][]string{
			"config": {"config"}, "secret": {"secret"}, "init": {"user", "net"}, "drive": {"user"},
		}},
		{"ConfigMaps", ptr.To(true), ptr.To(false), map[string][]string{
			"config": {"config-3"}, "secret": {"secret"}, "init": {"user", "net"}, "drive": {"user"},
		}},
		{"Secrets", nil, ptr.To(true), map[string][]string{
			"config": {"config"}, "secret": {"secret-3"}, "init": {"user-3", "net-3"}, "drive": {"user-3"},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.want["root"], tc.want["claim"] = []string{"root-3"}, []string{"root-3"}
			tc.want["shared"], tc.want["shared claim"], tc.want["sysprep"] = []string{"shared"}, []string{"shared"},
				[]string{"sysprep"}
			spec := newSpec(1, named, func(s *poolv1.VirtualMachinePoolSpec) {
				s.NameGeneration = &poolv1.VirtualMachinePoolNameGeneration{
					AppendIndexToConfigMapRefs: tc.configMaps, AppendIndexToSecretRefs: tc.secrets,
				}
			})
			before := spec.DeepCopy()
			got := render(spec, 3)
			if !reflect.DeepEqual(spec, before) {
				t.Error("the template was changed")
			}
			if name := got.spec.DataVolumeTemplates[0].Name; name != "root-3" {
				t.Errorf("DataVolume template %q", name)
			}
			names := map[string][]string{}
			for i := range got.spec.Template.Spec.Volumes {
				names[got.spec.Template.Spec.Volumes[i].Name] = namesIn(&got.spec.Template.Spec.Volumes[i])
			}
			if !reflect.DeepEqual(names, tc.want) {
				t.Errorf("got %v, want %v", names, tc.want)
			}
		})
	}
}

func namesIn(v *v1.Volume) (names []string) {
	var references []*corev1.LocalObjectReference
	switch {
	case v.DataVolume != nil:
		return []string{v.DataVolume.Name}
	case v.PersistentVolumeClaim != nil:
		return []string{v.PersistentVolumeClaim.ClaimName}
	case v.ConfigMap != nil:
		return []string{v.ConfigMap.Name}
	case v.Secret != nil:
		return []string{v.Secret.SecretName}
	case v.Sysprep != nil:
		return []string{v.Sysprep.Secret.Name}
	case v.CloudInitNoCloud != nil:
		references = append(references, v.CloudInitNoCloud.UserDataSecretRef, v.CloudInitNoCloud.NetworkDataSecretRef)
	case v.CloudInitConfigDrive != nil:
		references = append(references, v.CloudInitConfigDrive.UserDataSecretRef, v.CloudInitConfigDrive.NetworkDataSecretRef)
	}
	for _, reference := range references {
		if reference != nil {
			names = append(names, reference.Name)
		}
	}
	return names
}

func TestNewVM(t *testing.T) {
	pool := &poolv1.VirtualMachinePool{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "a", UID: "pool"},
		Spec: *newSpec(1)}
	pool.Spec.VirtualMachineTemplate.ObjectMeta.Annotations = map[string]string{"from": "template"}
	vm := newVM(pool, 7, "web-1")
	want := metav1.ObjectMeta{
		Name: "web-7", Namespace: "a", Annotations: map[string]string{"from": "template"},
		Labels:          map[string]string{"app": "web", v1.VirtualMachinePoolRevisionName: "web-1"},
		Finalizers:      []string{poolapi.VirtualMachinePoolControllerFinalizer},
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pool, poolKind)},
	}
	if !reflect.DeepEqual(vm.ObjectMeta, want) {
		t.Errorf("got %+v, want %+v", vm.ObjectMeta, want)
	}
	labels := map[string]string{"app": "web", v1.VirtualMachinePoolRevisionName: "web-1"}
	if got := vm.Spec.Template.ObjectMeta.Labels; !reflect.DeepEqual(got, labels) {
		t.Errorf("template's labels: got %v, want %v", got, labels)
	}
	if len(pool.Spec.VirtualMachineTemplate.ObjectMeta.Labels) != 1 {
		t.Error("the pool was changed")
	}
}

// TestApplyTemplate changes a VM of newSpec as users do, and then the template.
func TestApplyTemplate(t *testing.T) {
	halt := func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted) }
	template := func(s *poolv1.VirtualMachinePoolSpec) *v1.VirtualMachineInstanceSpec {
		return &s.VirtualMachineTemplate.Spec.Template.Spec
	}
	disk := func(name string) v1.Volume {
		return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: name}}}
	}
	volumeNames := func(vm *v1.VirtualMachine) (names []string) {
		for i := range vm.Spec.Template.Spec.Volumes {
			names = append(names, vm.Spec.Template.Spec.Volumes[i].Name)
		}
		return names
	}
	for _, tc := range []struct {
		name   string
		user   func(*v1.VirtualMachine)
		change specChange
		got    func(*v1.VirtualMachine) any
		want   any
	}{
		{"a new value", nil, hostname("b"), func(vm *v1.VirtualMachine) any { return vm.Spec.Template.Spec.Hostname }, "b"},
		{"virtctl stop", halt, hostname("b"), func(vm *v1.VirtualMachine) any { return *vm.Spec.RunStrategy }, v1.RunStrategyHalted},
		{"another run strategy wins", halt, func(s *poolv1.VirtualMachinePoolSpec) {
			s.VirtualMachineTemplate.Spec.RunStrategy = ptr.To(v1.RunStrategyManual)
		}, func(vm *v1.VirtualMachine) any { return *vm.Spec.RunStrategy }, v1.RunStrategyManual},
		{"never both fields", halt, func(s *poolv1.VirtualMachinePoolSpec) {
			s.VirtualMachineTemplate.Spec.RunStrategy, s.VirtualMachineTemplate.Spec.Running = nil, ptr.To(true)
		}, func(vm *v1.VirtualMachine) any { return []any{vm.Spec.RunStrategy == nil, *vm.Spec.Running} }, []any{true, true}},
		{"hotplugged volumes", func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes, disk("hotplugged"))
		}, func(s *poolv1.VirtualMachinePoolSpec) {
			template(s).Volumes = append(template(s).Volumes, disk("added"))
		}, func(vm *v1.VirtualMachine) any { return volumeNames(vm) }, []string{"root", "added", "hotplugged"}},
		{"a volume of another kind", nil, func(s *poolv1.VirtualMachinePoolSpec) { template(s).Volumes[0] = disk("root") },
			func(vm *v1.VirtualMachine) any { return vm.Spec.Template.Spec.Volumes }, []v1.Volume{disk("root")}},
		{"a removed volume", func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec.Volumes = append(vm.Spec.Template.Spec.Volumes, disk("mine"))
		}, func(s *poolv1.VirtualMachinePoolSpec) { template(s).Volumes = nil },
			func(vm *v1.VirtualMachine) any { return volumeNames(vm) }, []string{"mine"}},
		{"a volume that the user removed", func(vm *v1.VirtualMachine) { vm.Spec.Template.Spec.Volumes = nil },
			func(s *poolv1.VirtualMachinePoolSpec) {
				template(s).Volumes = append(template(s).Volumes, disk("added"))
			},
			func(vm *v1.VirtualMachine) any { return volumeNames(vm) }, []string{"added"}},
		{"a list without names", func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "mine"}}
		}, func(s *poolv1.VirtualMachinePoolSpec) {
			template(s).Tolerations = []corev1.Toleration{{Key: "template's"}}
		},
			func(vm *v1.VirtualMachine) any { return vm.Spec.Template.Spec.Tolerations },
			[]corev1.Toleration{{Key: "template's"}}},
		{"labels", func(vm *v1.VirtualMachine) { vm.Labels["mine"], vm.Labels["app"] = "x", "web" }, func(s *poolv1.VirtualMachinePoolSpec) {
			s.VirtualMachineTemplate.ObjectMeta.Labels = map[string]string{"tier": "a"}
		}, func(vm *v1.VirtualMachine) any { return vm.Labels },
			map[string]string{"mine": "x", "tier": "a", v1.VirtualMachinePoolRevisionName: "new"}},
		{"annotations", func(vm *v1.VirtualMachine) { vm.Annotations = map[string]string{"mine": "x"} }, func(s *poolv1.VirtualMachinePoolSpec) {
			s.VirtualMachineTemplate.ObjectMeta.Annotations = map[string]string{"a": "b"}
		}, func(vm *v1.VirtualMachine) any { return vm.Annotations }, map[string]string{"mine": "x", "a": "b"}},
		{"UUID and serial number", func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec.Domain.Firmware = &v1.Firmware{UUID: "mine", Serial: "mine"}
		}, func(s *poolv1.VirtualMachinePoolSpec) { template(s).Domain.Firmware = &v1.Firmware{UUID: "other"} },
			func(vm *v1.VirtualMachine) any { return *vm.Spec.Template.Spec.Domain.Firmware },
			v1.Firmware{UUID: "mine", Serial: "mine"}},
		{"a removed struct keeps what the user has in it", func(vm *v1.VirtualMachine) {
			vm.Spec.Template.Spec.NodeSelector = map[string]string{"mine": "x"}
		}, func(s *poolv1.VirtualMachinePoolSpec) { template(s).NodeSelector = map[string]string{"a": "b"} },
			func(vm *v1.VirtualMachine) any { return vm.Spec.Template.Spec.NodeSelector },
			map[string]string{"mine": "x", "a": "b"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			vm := newMember(newSpec(1), 0).vm
			if tc.user != nil {
				tc.user(vm)
			}
			if err := applyTemplate(vm, render(newSpec(1), 0), render(newSpec(1, tc.change), 0)); err != nil {
				t.Fatal(err)
			}
			if got := tc.got(vm); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// TestTemplateHash: only what VMs are made from counts.
func TestTemplateHash(t *testing.T) {
	hash := func(spec *poolv1.VirtualMachinePoolSpec) string {
		sum, err := templateHash(spec)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	base := hash(newSpec(1))
	if scaled := hash(newSpec(9, heals, func(s *poolv1.VirtualMachinePoolSpec) { s.Paused = true })); scaled != base {
		t.Error("a scaled pool has another hash")
	}
	if hash(newSpec(1, hostname("b"))) == base {
		t.Error("another template has the same hash")
	}
}
