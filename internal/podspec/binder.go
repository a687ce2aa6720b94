// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// binderPrefix is the prefix of the names of Pods that only bind volumes.
const binderPrefix = "virt-provision-"

// BinderName returns the name of the Pod that binds the volumes of a VMI.
func BinderName(vmi *v1.VirtualMachineInstance) string {
	return podName(binderPrefix, vmi.Name, string(vmi.UID))
}

// BuildBinder returns a Pod that uses the claims of the launcher Pod and completes. Some storage binds a claim when the first
// Pod uses it (WaitForFirstConsumer), and importers fill it after that. The launcher Pod must not be the first, because its
// guest would have an empty disk. The Pod has the launcher's scheduling constraints and resources, so that the claims are bound
// on a node with room for the guest.
func BuildBinder(vmi *v1.VirtualMachineInstance, cfg Config) (*corev1.Pod, error) {
	pod, err := Build(vmi, cfg)
	if err != nil {
		return nil, err
	}
	pod.ObjectMeta = metav1.ObjectMeta{
		Name: BinderName(vmi), Namespace: vmi.Namespace, OwnerReferences: pod.OwnerReferences,
		// Without the labels of the VMI, Services do not select the Pod.
		Labels:      map[string]string{v1.AppLabel: launcherpod.AppLabelValue, v1.CreatedByLabel: string(vmi.UID)},
		Annotations: map[string]string{v1.EphemeralProvisioningObject: "true"},
	}
	isClaim := map[string]bool{}
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		isClaim[v.Name] = v.PersistentVolumeClaim != nil
		return !isClaim[v.Name]
	})
	pod.Spec.Containers = pod.Spec.Containers[:1]
	compute := &pod.Spec.Containers[0]
	compute.VolumeMounts = slices.DeleteFunc(compute.VolumeMounts, func(m corev1.VolumeMount) bool { return !isClaim[m.Name] })
	compute.Command, compute.Args = []string{launcherpod.LauncherBinary, launcherpod.BindVolumesCommand}, nil
	compute.Ports, compute.ReadinessProbe, compute.LivenessProbe = nil, nil, nil
	pod.Spec.ReadinessGates = nil
	pod.Spec.Hostname, pod.Spec.Subdomain = "", ""
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	return pod, nil
}
