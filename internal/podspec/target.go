// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Target is the input of BuildTarget about a migration.
type Target struct {
	// Name and UID are those of the VirtualMachineInstanceMigration.
	Name string
	UID  types.UID
	// AddedNodeSelector restricts the nodes for this migration. Labels of other constraints take precedence.
	AddedNodeSelector map[string]string
	// CPU has the labels of nodes that support the guest's current CPU: see TargetCPUSelector.
	CPU map[string]string
	// Images has references that replace those of the spec, by name of the Pod's volume: see PinnedImages.
	Images map[string]string
	// SELinuxLevel is the level of the source Pod, with which files are labeled that both Pods use. Empty means that the
	// runtime chooses.
	SELinuxLevel string
	// PostCopy reports whether the migration may use post-copy, for which QEMU needs userfaultfd.
	PostCopy bool
}

// TargetPodName returns the name of a migration's target Pod. It is derived from the migration's UID, so that the API
// server refuses to create the Pod twice.
func TargetPodName(vmi *v1.VirtualMachineInstance, migration types.UID) string {
	return targetPodName(vmi.Name, vmi.UID, migration)
}

func targetPodName(vmiName string, vmi, migration types.UID) string {
	return podName(launcherpod.AppLabelValue+"-", vmiName, string(vmi)+"/"+string(migration))
}

// OwnPodName returns the name of the launcher Pod that runs the guest of a VMI: the one on the node that owns the
// guest.
func OwnPodName(vmi *v1.VirtualMachineInstance) string {
	m := vmi.Status.MigrationState
	switch {
	case m == nil || m.TargetPod == "" || m.SourcePod == "":
		return PodName(vmi)
	case vmi.Status.NodeName == m.TargetNode:
		return m.TargetPod
	default:
		return m.SourcePod
	}
}

// OtherPodName returns the name of the other Pod of a VMI's last migration, or "" if it has not been migrated.
func OtherPodName(vmi *v1.VirtualMachineInstance) string {
	m := vmi.Status.MigrationState
	switch own := OwnPodName(vmi); {
	case m == nil || m.TargetPod == "" || m.SourcePod == "":
		return ""
	case own == m.TargetPod:
		return m.SourcePod
	default:
		return m.TargetPod
	}
}

// BuildTarget returns the target Pod of a migration: the launcher Pod, with constraints for another node that can run
// the guest. The errors are those of Build.
func BuildTarget(vmi *v1.VirtualMachineInstance, cfg Config, target Target) (*corev1.Pod, error) {
	pod, err := Build(vmi, cfg)
	if err != nil {
		return nil, err
	}
	pod.Name = TargetPodName(vmi, target.UID)
	pod.Labels[v1.MigrationJobLabel] = string(target.UID)
	pod.Annotations[v1.MigrationJobNameAnnotation] = target.Name
	selector := maps.Clone(target.AddedNodeSelector)
	if selector == nil {
		selector = map[string]string{}
	}
	maps.Copy(selector, pod.Spec.NodeSelector)
	keepMachine(selector, vmi)
	maps.Copy(selector, target.CPU)
	pod.Spec.NodeSelector = selector
	pinImages(&pod.Spec, target.Images)
	avoid(&pod.Spec, vmi)
	if target.SELinuxLevel != "" {
		pod.Spec.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Level: target.SELinuxLevel}
	}
	compute := &pod.Spec.Containers[0]
	if target.PostCopy {
		addDevice(&compute.Resources, deviceUserfaultfd)
	}
	awaitGuest(compute, vmi)
	return pod, nil
}

// keepMachine replaces the machine type of the spec, which can be an alias such as q35, by that of the running guest in
// the selector. It ignores a type that is not a valid label name, because the type comes from the launcher. Source:
// kubevirt/kubevirt pkg/virt-controller/services, the node selector of status.machine.
func keepMachine(selector map[string]string, vmi *v1.VirtualMachineInstance) {
	machine, spec := vmi.Status.Machine, vmi.Spec.Domain.Machine
	if machine == nil || spec == nil || selector[machineLabel(spec)] != yes {
		return
	}
	label := v1.SupportedMachineTypeLabel + machine.Type
	if machine.Type == "" || len(validation.IsQualifiedName(label)) > 0 {
		return
	}
	delete(selector, machineLabel(spec))
	selector[label] = yes
}

// avoid adds an anti-affinity to the other Pods of the VMI.
func avoid(spec *corev1.PodSpec, vmi *v1.VirtualMachineInstance) {
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.PodAntiAffinity == nil {
		spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
	}
	rules := &spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	*rules = append(*rules, corev1.PodAffinityTerm{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{v1.AppLabel: launcherpod.AppLabelValue,
			v1.CreatedByLabel: string(vmi.UID)}},
		TopologyKey: corev1.LabelHostname,
	})
}

// awaitSeconds is how long one run of the startup probe waits for the guest. Each run that ends without it is an event
// of the Pod.
const awaitSeconds = 60

// awaitGuest makes the probes begin when the guest runs in this Pod. Before, a liveness probe would stop the Pod, and a
// readiness probe would cause events. The initial delay of a readiness probe is for the guest's boot, which is over:
// the Pod of a guest that runs is to be ready at once. That of a liveness probe delays nothing, and stays for a guest
// that is migrated while it boots.
func awaitGuest(compute *corev1.Container, vmi *v1.VirtualMachineInstance) {
	if compute.LivenessProbe == nil && compute.ReadinessProbe == nil {
		return
	}
	if compute.ReadinessProbe != nil {
		compute.ReadinessProbe.InitialDelaySeconds = 0
	}
	compute.StartupProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{
			launcherpod.LauncherBinary, launcherpod.AwaitGuestCommand, "--domain",
			launcherpod.DomainName(vmi.Namespace, vmi.Name), "--timeout-seconds", strconv.Itoa(awaitSeconds),
		}}},
		TimeoutSeconds: awaitSeconds + agentDelay, PeriodSeconds: 1, FailureThreshold: math.MaxInt32,
	}
}

// TargetCPUSelector returns the labels that the target node of a migration must have: the vendor of the source node's
// CPU, and for a guest whose CPU depends on the node of its start also the labels of that CPU. Labels that the source
// node lacks are not required. For host-model that is an error, because then the guest's CPU is not known. podSelector
// is the node selector of the source Pod. Source: kubevirt/kubevirt pkg/virt-controller/watch/migration, and its test
// of the vendor's label.
func TargetCPUSelector(
	vmi *v1.VirtualMachineInstance, node string, nodeLabels, podSelector map[string]string,
) (map[string]string, error) {
	out := labelsWith(nodeLabels, v1.CPUModelVendorLabel)
	switch model(vmi) {
	case v1.CPUModeHostModel:
		host, err := hostModelSelector(node, nodeLabels, podSelector)
		if err != nil {
			return nil, err
		}
		maps.Copy(out, host)
	case v1.CPUModeHostPassthrough:
		maps.Copy(out, samePassthrough(nodeLabels, podSelector))
	}
	return out, nil
}

func labelsWith(labels map[string]string, prefixes ...string) map[string]string {
	out := map[string]string{}
	for key, value := range labels {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
			out[key] = value
		}
	}
	return out
}

func model(vmi *v1.VirtualMachineInstance) string {
	if cpu := vmi.Spec.Domain.CPU; cpu != nil {
		return cpu.Model
	}
	return ""
}

// samePassthrough returns the labels of nodes with the same CPU model and features as the node of the guest's start. A
// guest that has been migrated before keeps those of its first node, so that it can be migrated back.
func samePassthrough(nodeLabels, podSelector map[string]string) map[string]string {
	if first := labelsWith(podSelector, v1.HostModelCPULabel, v1.HostModelRequiredFeaturesLabel); len(first) > 0 {
		return first
	}
	return labelsWith(nodeLabels, v1.HostModelCPULabel, v1.HostModelRequiredFeaturesLabel)
}

// hostModelSelector returns the labels of nodes that support the host-model CPU of a guest: the model and the features
// of the node of its start. A guest that has been migrated before has the CPU of its first node, whose labels are in
// the selector of its Pod.
//
// All features are required, and not only those beyond the model as in KubeVirt: a node that only knows the model may
// lack features of it, and then libvirt would refuse the migration after the target's Pod was created.
// Source: kubevirt/kubevirt pkg/virt-controller/watch/migration, prepareNodeSelectorForHostCpuModel.
func hostModelSelector(node string, nodeLabels, podSelector map[string]string) (map[string]string, error) {
	out := map[string]string{}
	migrated := false
	for key, value := range podSelector {
		model := strings.HasPrefix(key, v1.SupportedHostModelMigrationCPU)
		if model || strings.HasPrefix(key, v1.CPUFeatureLabel) {
			out[key] = value
			migrated = migrated || model
		}
	}
	if migrated {
		return out, nil
	}
	found := false
	for key, value := range nodeLabels {
		if model, ok := strings.CutPrefix(key, v1.HostModelCPULabel); ok {
			out[v1.SupportedHostModelMigrationCPU+model], found = value, true
		}
		if feature, ok := strings.CutPrefix(key, v1.HostModelRequiredFeaturesLabel); ok {
			out[v1.CPUFeatureLabel+feature] = value
		}
		if strings.HasPrefix(key, v1.CPUFeatureLabel) {
			out[key] = value
		}
	}
	if !found {
		return nil, fmt.Errorf("node %s has no label %s*: which CPU the guest has is not known", node, v1.HostModelCPULabel)
	}
	return out, nil
}

// IsHostCPULabel reports whether a label of a node selector is for a guest whose CPU depends on the node of its start.
func IsHostCPULabel(key string) bool {
	prefixes := []string{
		v1.SupportedHostModelMigrationCPU, v1.CPUFeatureLabel, v1.HostModelCPULabel, v1.HostModelRequiredFeaturesLabel,
	}
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// DependsOnHostCPU reports whether the guest's CPU depends on the node of its start.
func DependsOnHostCPU(vmi *v1.VirtualMachineInstance) bool {
	return model(vmi) == v1.CPUModeHostModel || model(vmi) == v1.CPUModeHostPassthrough
}
