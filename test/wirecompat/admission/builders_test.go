// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package admission

import (
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// mapper returns a RESTMapper that all clients share, so that they do not repeat discovery.
var theMapper = sync.OnceValues(func() (meta.RESTMapper, error) {
	httpClient, err := rest.HTTPClientFor(restCfg)
	if err != nil {
		return nil, err
	}
	return apiutil.NewDynamicRESTMapper(restCfg, httpClient)
})

func mapper(t *testing.T) meta.RESTMapper {
	t.Helper()
	m, err := theMapper()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

type (
	spec   = v1.VirtualMachineInstanceSpec
	option = func(*spec)
)

// vmi returns a valid VMI, for amd64 with 1Gi of memory, after options.
func vmi(options ...option) *v1.VirtualMachineInstance {
	object := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "guest", Namespace: metav1.NamespaceDefault}}
	object.Spec.Domain.Memory = &v1.Memory{Guest: quantity("1Gi")}
	for _, o := range options {
		o(&object.Spec)
	}
	return object
}

// vm returns a VM with such a template.
func vm(options ...option) *v1.VirtualMachine {
	object := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "machine", Namespace: metav1.NamespaceDefault}}
	object.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted)
	object.Spec.Template = &v1.VirtualMachineInstanceTemplateSpec{Spec: vmi(options...).Spec}
	return object
}

// vmWith returns a VM with a change outside its template.
func vmWith(change func(*v1.VirtualMachineSpec), options ...option) *v1.VirtualMachine {
	object := vm(options...)
	change(&object.Spec)
	return object
}

func quantity(s string) *resource.Quantity { return ptr.To(resource.MustParse(s)) }

// gates returns a configuration with feature gates enabled.
func gates(names ...string) v1.KubeVirtConfiguration {
	return v1.KubeVirtConfiguration{DeveloperConfiguration: &v1.DeveloperConfiguration{FeatureGates: names}}
}

// without returns a configuration with feature gates disabled.
func without(names ...string) v1.KubeVirtConfiguration {
	return v1.KubeVirtConfiguration{DeveloperConfiguration: &v1.DeveloperConfiguration{DisabledFeatureGates: names}}
}

func onArchitecture(name string) option { return func(s *spec) { s.Architecture = name } }

func with(change func(*spec)) option { return change }

func cpu(c v1.CPU) option { return func(s *spec) { s.Domain.CPU = &c } }

func memory(m v1.Memory) option { return func(s *spec) { s.Domain.Memory = &m } }

func noMemory(s *spec) { s.Domain.Memory = nil }

func list(cpus, bytes string) corev1.ResourceList {
	l := corev1.ResourceList{}
	if cpus != "" {
		l[corev1.ResourceCPU] = resource.MustParse(cpus)
	}
	if bytes != "" {
		l[corev1.ResourceMemory] = resource.MustParse(bytes)
	}
	return l
}

func requests(cpus, bytes string) option {
	return func(s *spec) { s.Domain.Resources.Requests = list(cpus, bytes) }
}

func limits(cpus, bytes string) option {
	return func(s *spec) { s.Domain.Resources.Limits = list(cpus, bytes) }
}

func devices(change func(*v1.Devices)) option { return func(s *spec) { change(&s.Domain.Devices) } }

func firmware(f v1.Firmware) option { return func(s *spec) { s.Domain.Firmware = &f } }

func features(f v1.Features) option { return func(s *spec) { s.Domain.Features = &f } }

// volume adds a volume that no device uses.
func volume(name string, source v1.VolumeSource) option {
	return func(s *spec) { s.Volumes = append(s.Volumes, v1.Volume{Name: name, VolumeSource: source}) }
}

// disk adds a device and, unless it is nil, its volume.
func disk(d v1.Disk, source *v1.VolumeSource) option {
	return func(s *spec) {
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, d)
		if source != nil {
			volume(d.Name, *source)(s)
		}
	}
}

// hardDisk adds a virtio disk of a container image, after a change.
func hardDisk(change func(*v1.Disk)) option {
	d := v1.Disk{Name: "root", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}
	change(&d)
	return disk(d, image())
}

func image() *v1.VolumeSource {
	return &v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "example.org/disk:1"}}
}

func claim(name string) *v1.VolumeSource {
	return &v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}
}

// noCloud adds a cloud-init volume with its disk.
func noCloud(source v1.CloudInitNoCloudSource) option {
	return disk(v1.Disk{Name: "init"}, &v1.VolumeSource{CloudInitNoCloud: &source})
}

func configDrive(source v1.CloudInitConfigDriveSource) option {
	return disk(v1.Disk{Name: "drive"}, &v1.VolumeSource{CloudInitConfigDrive: &source})
}

// onPod adds an interface with masquerade binding on the Pod network, after a change.
func onPod(change func(*v1.Interface)) option {
	iface := v1.Interface{Name: "pod",
		InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}}
	change(&iface)
	return nic(iface, v1.NetworkSource{Pod: &v1.PodNetwork{}})
}

// onMultus adds an interface with bridge binding on a secondary network, after a change.
func onMultus(name string, change func(*v1.Interface)) option {
	iface := v1.Interface{Name: name, InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}}
	change(&iface)
	return nic(iface, v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "team/" + name}})
}

func nic(iface v1.Interface, source v1.NetworkSource) option {
	return func(s *spec) {
		s.Domain.Devices.Interfaces = append(s.Domain.Devices.Interfaces, iface)
		s.Networks = append(s.Networks, v1.Network{Name: iface.Name, NetworkSource: source})
	}
}

func plain(*v1.Interface) {}

func off() *v1.FeatureState { return &v1.FeatureState{Enabled: ptr.To(false)} }

func on() *v1.FeatureState { return &v1.FeatureState{Enabled: ptr.To(true)} }

// at returns the path of a device's field.
func at(device string) string { return "spec.domain.devices." + device }
