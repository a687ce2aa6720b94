// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/builder"
)

func ownedVMI() *v1.VirtualMachineInstance {
	return builder.MakeVMI("vm").Namespace("ns").UID("u").Obj()
}

func podOf(vmi *v1.VirtualMachineInstance, change func(*corev1.Pod, *metav1.OwnerReference)) *corev1.Pod {
	owner := metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: TargetPodName(vmi, "m"),
		Labels: map[string]string{v1.AppLabel: launcherpod.AppLabelValue, v1.CreatedByLabel: "u", v1.MigrationJobLabel: "m"},
	}}
	change(pod, owner)
	if owner.Name != "" {
		pod.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return pod
}

// The cases include Pods that only look like launcher Pods.
func TestOwner(t *testing.T) {
	for name, c := range map[string]struct {
		change             func(*corev1.Pod, *metav1.OwnerReference)
		of, orphan, target bool
	}{
		"controlled":         {func(*corev1.Pod, *metav1.OwnerReference) {}, true, false, true},
		"an earlier version": {func(_ *corev1.Pod, o *metav1.OwnerReference) { o.APIVersion = "kubevirt.io/v1alpha3" }, true, false, true},
		"without a label":    {func(p *corev1.Pod, _ *metav1.OwnerReference) { p.Labels = nil }, true, false, false},
		"labels alone":       {func(_ *corev1.Pod, o *metav1.OwnerReference) { o.Name = "" }, false, true, false},
		"one label alone": {func(p *corev1.Pod, o *metav1.OwnerReference) {
			o.Name = ""
			delete(p.Labels, v1.AppLabel)
		}, false, false, false},
		"no controller":       {func(_ *corev1.Pod, o *metav1.OwnerReference) { o.Controller = nil }, false, true, false},
		"explicitly none":     {func(_ *corev1.Pod, o *metav1.OwnerReference) { o.Controller = ptr.To(false) }, false, true, false},
		"another's UID":       {func(_ *corev1.Pod, o *metav1.OwnerReference) { o.UID = "v" }, false, false, false},
		"another's name":      {func(_ *corev1.Pod, o *metav1.OwnerReference) { o.Name = "other" }, false, false, false},
		"another kind":        {func(_ *corev1.Pod, o *metav1.OwnerReference) { o.Kind = "ConfigMap" }, false, false, false},
		"another group":       {func(_ *corev1.Pod, o *metav1.OwnerReference) { o.APIVersion = "team.example/v1" }, false, false, false},
		"a group like ours":   {func(_ *corev1.Pod, o *metav1.OwnerReference) { o.APIVersion = "kubevirt.io.example/v1" }, false, false, false},
		"no group":            {func(_ *corev1.Pod, o *metav1.OwnerReference) { o.APIVersion = "v1" }, false, false, false},
		"invalid apiVersion":  {func(_ *corev1.Pod, o *metav1.OwnerReference) { o.APIVersion = "a/b/c" }, false, false, false},
		"another namespace":   {func(p *corev1.Pod, _ *metav1.OwnerReference) { p.Namespace = "other" }, false, false, false},
		"another Pod's name":  {func(p *corev1.Pod, _ *metav1.OwnerReference) { p.Name = "virt-launcher-vm" }, true, false, false},
		"another migration's": {func(p *corev1.Pod, _ *metav1.OwnerReference) { p.Labels[v1.MigrationJobLabel] = "n" }, true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := ownedVMI()
			pod := podOf(vmi, c.change)
			migration := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "go",
				UID: "m"}}
			migration.Spec.VMIName = "vm"
			// IsOf compares the UID of the VMI.
			if got := IsOf(pod, vmi); got != c.of {
				t.Errorf("IsOf: %t", got)
			}
			if got := IsOrphanOf(pod, vmi); got != c.orphan {
				t.Errorf("IsOrphanOf: %t", got)
			}
			if got := IsTargetOf(pod, migration); got != c.target {
				t.Errorf("IsTargetOf: %t", got)
			}
		})
	}
}

// A user cannot set the labels or request the device of a migration target in a VMI.
func TestAVMICannotMarkItsPod(t *testing.T) {
	cfg := Config{LauncherImage: "launcher"}
	vmi := ownedVMI()
	vmi.Labels = map[string]string{v1.AppLabel: "hotplug-disk", v1.CreatedByLabel: "other", v1.MigrationJobLabel: "m"}
	vmi.Annotations = map[string]string{v1.MigrationJobNameAnnotation: "go"}
	pod, err := Build(vmi, cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, label := pod.Labels[v1.MigrationJobLabel]
	_, annotation := pod.Annotations[v1.MigrationJobNameAnnotation]
	if label || annotation || pod.Labels[v1.AppLabel] != launcherpod.AppLabelValue ||
		pod.Labels[v1.CreatedByLabel] != "u" {
		t.Errorf("labels %v, annotations %v", pod.Labels, pod.Annotations)
	}

	const network = "secondary"
	list := corev1.ResourceList{deviceUserfaultfd: resource.MustParse("1")}
	for where, change := range map[string]func(*v1.VirtualMachineInstance, *Config){
		"spec.domain.resources.requests": func(vmi *v1.VirtualMachineInstance, _ *Config) { vmi.Spec.Domain.Resources.Requests = list },
		"spec.domain.resources.limits":   func(vmi *v1.VirtualMachineInstance, _ *Config) { vmi.Spec.Domain.Resources.Limits = list },
		"network " + network: func(vmi *v1.VirtualMachineInstance, cfg *Config) {
			vmi.Spec.Networks = []v1.Network{{Name: network,
				NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "def"}}}}
			cfg.NetworkResources = map[string]corev1.ResourceName{network: deviceUserfaultfd}
		},
	} {
		vmi, cfg := ownedVMI(), cfg
		change(vmi, &cfg)
		if _, err := Build(vmi, cfg); err == nil || !strings.Contains(err.Error(), where) {
			t.Errorf("%s: got %v", where, err)
		}
	}
}
