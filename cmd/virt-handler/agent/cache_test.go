// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
)

// A Pod in the cache tells whether the kubelet has applied its resources.
func TestPodInTheCacheHasItsResources(t *testing.T) {
	list := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
			"devices.kubevirt.io/tun": resource.MustParse("1")}
	}
	for allocated, want := range map[string]bool{"100m": false, "200m": true} {
		pod := &corev1.Pod{
			Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "other", Resources: corev1.ResourceRequirements{Requests: list("1")}},
				{Name: launcherpod.ComputeContainer, Image: "i", Resources: corev1.ResourceRequirements{Requests: list("200m")}},
			}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
				Name: launcherpod.ComputeContainer, AllocatedResources: list(allocated),
			}}},
		}
		slim, err := slimPod(pod)
		if err != nil {
			t.Fatal(err)
		}
		kept, ok := slim.(*corev1.Pod)
		if !ok || len(kept.Spec.Containers) != 1 || len(kept.Spec.Containers[0].Resources.Requests) != 1 ||
			kept.Spec.Containers[0].Image != "" {
			t.Fatalf("the cache has %v", slim)
		}
		if got := resize.Applied(kept); got != want {
			t.Errorf("allocated %s: applied: %t, want %t", allocated, got, want)
		}
	}
}

// A volume is hotplugged if the launcher Pod does not have its claim.
func TestPodInTheCacheHasItsClaims(t *testing.T) {
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}
	slim, err := slimPod(&corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "sockets", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, {Name: "data", VolumeSource: claim},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	kept, ok := slim.(*corev1.Pod)
	if !ok || len(kept.Spec.Volumes) != 1 || !podspec.HasClaim(kept, "claim") ||
		slices.ContainsFunc(kept.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil }) {
		t.Errorf("the cache has %v", slim)
	}
}
