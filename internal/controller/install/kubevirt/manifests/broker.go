// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// maxDevices is the flag with the maximum number of VMIs on a node. It is one of KubeVirt's virt-handler, and here that
// of the program with the device plugins.
const maxDevices = "max-devices"

// isMaxDevices reports whether a flag of the KubeVirt object is maxDevices.
func isMaxDevices(name string) bool {
	return strings.EqualFold(strings.TrimLeft(name, "-"), maxDevices)
}

// configureBroker sets the fields that depend on the cluster. It runs wherever the agent runs, which cannot work
// without it.
func configureBroker(ds *appsv1.DaemonSet, s Settings) {
	pod := &ds.Spec.Template.Spec
	for i := range pod.Containers {
		container := &pod.Containers[i]
		container.Image, container.ImagePullPolicy = s.Config.Images.Broker, s.Config.ImagePullPolicy
		container.Args = []string{"--kubelet-root", s.kubeletRoot()}
		if container.Name == string(brokerapi.DevicePlugin) {
			container.Args = append(container.Args, "--"+maxDevices, s.maxDevices())
		}
		for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
			probe.Exec.Command = append(probe.Exec.Command, "--kubelet-root", s.kubeletRoot())
		}
	}
	pod.ImagePullSecrets = s.Config.ImagePullSecrets
	moveKubelet(pod, s.kubeletRoot())
	place(pod, s.Workloads)
}

// maxDevices returns the maximum number of VMIs on a node. A flag for virt-handler in the KubeVirt object, as KubeVirt
// has it, wins.
func (s Settings) maxDevices() string {
	number := strconv.Itoa(s.Config.VirtualMachineInstancesPerNode)
	if s.Customize.Flags == nil {
		return number
	}
	for _, name := range slices.Sorted(maps.Keys(s.Customize.Flags.Handler)) {
		if value := s.Customize.Flags.Handler[name]; isMaxDevices(name) && value != "" {
			number = value
		}
	}
	return number
}
