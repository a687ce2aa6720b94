// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/rights"
)

//go:embed kwok.yaml
var kwokStages []byte

const (
	// simulatedLabel is on the nodes that kwok simulates.
	simulatedLabel = "scale.vireo.io/simulated=true"
	namespace      = "scale"
	// rootVolume is the volume of VMs with a containerDisk.
	rootVolume = "root"
	// memoryMiB is the guests' memory.
	memoryMiB = 1024
)

// userData has the size of a common cloud-init configuration, and no content.
var userData = "#cloud-config\n" + string(bytes.Repeat([]byte("# comment that stands for settings of a guest\n"), 20))

func nodeName(i int) string { return fmt.Sprintf("node-%03d", i) }

func vmName(i int) string { return fmt.Sprintf("vm-%05d", i) }

// install creates what config/default installs. The Service of the webhooks leads to virt-controller's port on
// this machine.
func (w *world) install(ctx context.Context) error {
	manifests, err := kustomize(ctx)
	if err != nil {
		return err
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		switch object.GetKind() {
		case "CustomResourceDefinition": // The control plane has them already.
			continue
		case "Service":
			object.Object["spec"] = map[string]any{"type": "ExternalName", "externalName": "localhost"}
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			if err := w.setWebhookPort(object); err != nil {
				return err
			}
		}
		if err := w.api.Create(ctx, object); err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return w.api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
}

func (w *world) createKubeVirt(ctx context.Context) error { return w.api.Create(ctx, kubeVirt()) }

func kubeVirt() *v1.KubeVirt {
	return &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: rights.Namespace, Name: "kubevirt"}}
}

func (w *world) setWebhookPort(configuration *unstructured.Unstructured) error {
	webhooks, _, err := unstructured.NestedSlice(configuration.Object, "webhooks")
	if err != nil {
		return err
	}
	for _, webhook := range webhooks {
		fields, ok := webhook.(map[string]any)
		if !ok {
			return fmt.Errorf("%s has a webhook without fields", configuration.GetName())
		}
		if err := unstructured.SetNestedField(fields, int64(w.webhookPort), "clientConfig", "service", "port"); err != nil {
			return err
		}
	}
	return unstructured.SetNestedSlice(configuration.Object, webhooks, "webhooks")
}

// addNodes creates the Nodes, with the devices that virt-broker's device plugins would advertise.
func (w *world) addNodes(ctx context.Context) error {
	selected, err := metav1.ParseToLabelSelector(simulatedLabel)
	if err != nil {
		return err
	}
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("256"), corev1.ResourceMemory: resource.MustParse("1Ti"),
		corev1.ResourcePods: resource.MustParse("500"), corev1.ResourceEphemeralStorage: resource.MustParse("10Ti"),
		"devices.kubevirt.io/kvm": resource.MustParse("1000"), "devices.kubevirt.io/tun": resource.MustParse("1000"),
		"devices.kubevirt.io/vhost-net": resource.MustParse("1000"), "devices.kubevirt.io/vhost-vsock": resource.MustParse("1000"),
	}
	for i := range w.o.nodes {
		labels := map[string]string{corev1.LabelHostname: nodeName(i), corev1.LabelOSStable: "linux",
			corev1.LabelArchStable: "amd64"}
		for key, value := range selected.MatchLabels {
			labels[key] = value
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: labels}}
		node.Status.Capacity, node.Status.Allocatable = resources, resources
		if err := w.api.Create(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// makeVM returns a VM like those that people run: a disk, cloud-init and a network.
func makeVM(i int) *v1.VirtualMachine {
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: vmName(i),
		Labels:      map[string]string{"app.kubernetes.io/name": "scale", "app.kubernetes.io/instance": vmName(i)},
		Annotations: map[string]string{"description": "A virtual machine of the scale benchmark"},
	}}
	vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
	template := &v1.VirtualMachineInstanceTemplateSpec{}
	template.ObjectMeta.Labels = map[string]string{"app.kubernetes.io/name": "scale",
		"app.kubernetes.io/instance": vmName(i)}
	spec := &template.Spec
	spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
	spec.Domain.CPU = &v1.CPU{Cores: 1}
	spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse(fmt.Sprintf("%dMi", memoryMiB)))}
	disk := v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}
	spec.Domain.Devices.Disks = []v1.Disk{{Name: rootVolume, DiskDevice: disk}, {Name: "cloud-init", DiskDevice: disk}}
	spec.Volumes = []v1.Volume{
		{Name: rootVolume, VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "example.com/disk:v1"}}},
		{Name: "cloud-init", VolumeSource: v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: userData}}},
	}
	spec.Domain.Devices.Interfaces = []v1.Interface{{
		Name: "default", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}},
	}}
	spec.Networks = []v1.Network{{Name: "default", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}}
	vm.Spec.Template = template
	return vm
}
