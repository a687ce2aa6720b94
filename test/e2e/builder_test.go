// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// option changes a VM that makeVM is about to return.
type option func(*v1.VirtualMachine)

// makeVM returns a VM with the small guest on a containerDisk, a masquerade interface and 128 MiB. It starts at once.
func makeVM(namespace, name string, options ...option) *v1.VirtualMachine {
	vm := &v1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1.VirtualMachineSpec{
			RunStrategy: ptr.To(v1.RunStrategyAlways),
			Template: &v1.VirtualMachineInstanceTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"vm": name}},
				Spec: v1.VirtualMachineInstanceSpec{
					TerminationGracePeriodSeconds: ptr.To(int64(20)),
					Domain: v1.DomainSpec{
						Memory: &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))},
						Devices: v1.Devices{Interfaces: []v1.Interface{{
							Name:                   "default",
							InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}},
						}}},
					},
					Networks: []v1.Network{{Name: "default", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}},
				},
			},
		},
	}
	withDisk("root", v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{
		Image: image("guest-small"), ImagePullPolicy: corev1.PullIfNotPresent,
	}})(vm)
	for _, change := range options {
		change(vm)
	}
	return vm
}

func spec(vm *v1.VirtualMachine) *v1.VirtualMachineInstanceSpec { return &vm.Spec.Template.Spec }

func withDisk(name string, source v1.VolumeSource) option {
	return func(vm *v1.VirtualMachine) {
		s := spec(vm)
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{
			Name: name, Serial: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}},
		})
		s.Volumes = append(s.Volumes, v1.Volume{Name: name, VolumeSource: source})
	}
}

func withUserData(text string) option {
	return withDisk("cloudinit", v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: text}})
}

func withUserDataSecret(secret string) option {
	return withDisk("cloudinit", v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{
		UserDataSecretRef: &corev1.LocalObjectReference{Name: secret},
	}})
}

func withClaim(name, claim string) option {
	return withDisk(name, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}})
}

func withRunStrategy(strategy v1.VirtualMachineRunStrategy) option {
	return func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = ptr.To(strategy) }
}

func withGracePeriod(seconds int64) option {
	return func(vm *v1.VirtualMachine) { spec(vm).TerminationGracePeriodSeconds = ptr.To(seconds) }
}

func withMemory(quantity string) option {
	return func(vm *v1.VirtualMachine) { spec(vm).Domain.Memory.Guest = ptr.To(resource.MustParse(quantity)) }
}

func withEFI() option {
	return func(vm *v1.VirtualMachine) {
		spec(vm).Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{SecureBoot: ptr.To(false)}}}
	}
}

func withNode(node string) option {
	return func(vm *v1.VirtualMachine) { spec(vm).NodeSelector = map[string]string{corev1.LabelHostname: node} }
}

func withImage(reference string) option {
	return func(vm *v1.VirtualMachine) { spec(vm).Volumes[0].ContainerDisk.Image = reference }
}
