// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// DefaultKubeletRoot is where kubelets keep their state by default.
const DefaultKubeletRoot = "/var/lib/kubelet"

// configureHandler sets the fields that depend on the cluster.
func configureHandler(ds *appsv1.DaemonSet, s Settings) {
	pod := &ds.Spec.Template.Spec
	probe, agent := &pod.InitContainers[0], &pod.Containers[0]

	probe.Image, agent.Image = s.Config.Images.Launcher, s.Config.Images.Handler
	probe.ImagePullPolicy, agent.ImagePullPolicy = s.Config.ImagePullPolicy, s.Config.ImagePullPolicy
	pod.ImagePullSecrets = s.Config.ImagePullSecrets
	agent.Args = handlerArgs(s)

	moveKubelet(pod, s.kubeletRoot())
	place(pod, s.Workloads)
}

// handlerArgs are the agent's arguments. What the agent reads from the KubeVirt object live, such as its log
// verbosity, is not among them: changing it must not restart every agent.
func handlerArgs(s Settings) []string {
	fixed := []string{
		"--port", "8443",
		"--hostname-override", "$(NODE_NAME)",
		"--pod-ip-address", "$(MY_POD_IP)",
		"--install-namespace", "$(POD_NAMESPACE)",
		"--kubelet-root", s.kubeletRoot(),
		"--console-server-port", strconv.Itoa(agentapi.ConsolePort),
	}
	fixed = append(fixed, s.metricsArgs()...)
	if s.Customize.Flags == nil {
		return fixed
	}
	flags := maps.Clone(s.Customize.Flags.Handler)
	maps.DeleteFunc(flags, func(name, _ string) bool { return isMaxDevices(name) })
	return append(fixed, flagArgs(flags)...)
}

// metricsArgs are the arguments of all components about their metrics.
func (s Settings) metricsArgs() []string {
	if s.MetricsAuthorization {
		return []string{"--metrics-authorization"}
	}
	return nil
}

func (s Settings) kubeletRoot() string {
	if s.KubeletRoot == "" {
		return DefaultKubeletRoot
	}
	return path.Clean(s.KubeletRoot)
}

// kubeletVolumes are the volumes with directories of the kubelet, which the containers mount at the nodes' paths. The
// directory of a program's socket has the program's name.
var kubeletVolumes = []string{
	"kubelet-pods", "pod-resources", "published-devices", "broker",
	string(brokerapi.Broker), string(brokerapi.NetworkBroker), string(brokerapi.DevicePlugin),
}

// moveKubelet changes the manifest's paths when the kubelet keeps its state elsewhere. The device plugins'
// directory is the same for every kubelet root.
// Source: kubernetes staging/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/constants.go.
func moveKubelet(pod *corev1.PodSpec, root string) {
	moved := func(dir string) string {
		if below, ok := strings.CutPrefix(dir, DefaultKubeletRoot+"/"); ok {
			return path.Join(root, below)
		}
		return dir
	}
	for i := range pod.Volumes {
		if slices.Contains(kubeletVolumes, pod.Volumes[i].Name) {
			pod.Volumes[i].HostPath.Path = moved(pod.Volumes[i].HostPath.Path)
		}
	}
	for c := range pod.Containers {
		for i, m := range pod.Containers[c].VolumeMounts {
			if slices.Contains(kubeletVolumes, m.Name) {
				pod.Containers[c].VolumeMounts[i].MountPath = moved(m.MountPath)
			}
		}
	}
}

// unavailable is the path of the number of Pods of a DaemonSet that may be replaced at a time.
var unavailable = []string{"spec", "updateStrategy", "rollingUpdate", "maxUnavailable"}

// SetMaxUnavailable sets how many Pods of a DaemonSet may be replaced at a time, unless a patch has changed the
// strategy: then that applies. It is not part of the digest, because it changes during a rollout.
func SetMaxUnavailable(daemons *unstructured.Unstructured, number int) error {
	strategy, _, err := unstructured.NestedMap(daemons.Object, "spec", "updateStrategy")
	if err != nil {
		return fmt.Errorf("reading the strategy of %s: %w", daemons.GetName(), err)
	}
	shipped := map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxUnavailable": int64(1)}}
	if !equality.Semantic.DeepEqual(strategy, shipped) {
		return nil
	}
	return unstructured.SetNestedField(daemons.Object, int64(number), unavailable...)
}

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
