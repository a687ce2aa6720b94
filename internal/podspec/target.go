// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"maps"
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Target is what a Pod to which a guest migrates depends on beyond the VMI and the cluster's configuration.
type Target struct {
	// Name and UID are those of the VirtualMachineInstanceMigration.
	Name string
	UID  types.UID
	// AddedNodeSelector makes the choice of nodes smaller, for this migration alone. What else is asked of the node wins.
	AddedNodeSelector map[string]string
	// CPU are the labels of nodes that can run the CPU that the guest has now.
	CPU map[string]string
	// Images are references that replace those of the spec, by the names of the Pod's volumes: see PinnedImages.
	Images map[string]string
	// SELinuxLevel is the level of the Pod that the guest leaves: files that both Pods use carry it. Empty leaves the choice to
	// the runtime.
	SELinuxLevel string
	// PostCopy says that the guest may run there before all of it has come: QEMU then handles the faults of its memory.
	PostCopy bool
}

// TargetPodName is the name of the Pod that a migration goes to. It follows from the migration, so that making the Pod twice is
// refused by the API server.
func TargetPodName(vmi *v1.VirtualMachineInstance, migration types.UID) string {
	return targetPodName(vmi.Name, vmi.UID, migration)
}

func targetPodName(vmiName string, vmi, migration types.UID) string {
	return podName(LauncherAppValue+"-", vmiName, string(vmi)+"/"+string(migration))
}

// OwnPodName is the name of the launcher Pod in which the guest of a VMI is: that of the node that owns it.
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

// OtherPodName is the name of the other Pod of a VMI's migration, or empty if the VMI has never migrated.
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

// BuildTarget returns the Pod to which the guest of a VMI migrates: the launcher Pod, on another node that can run the guest as
// it is. Errors are those of Build.
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
	awaitGuest(compute)
	return pod, nil
}

// keepMachine asks for a node that has the very machine that the guest runs on, where the spec may name the newest of its family.
// Source: kubevirt/kubevirt pkg/virt-controller/services, the node selector of status.machine. What is no label's name is not asked
// for: the type comes from the launcher.
func keepMachine(selector map[string]string, vmi *v1.VirtualMachineInstance) {
	machine, spec := vmi.Status.Machine, vmi.Spec.Domain.Machine
	if machine == nil || spec == nil || selector[v1.SupportedMachineTypeLabel+spec.Type] != yes {
		return
	}
	label := v1.SupportedMachineTypeLabel + machine.Type
	if machine.Type == "" || len(validation.IsQualifiedName(label)) > 0 {
		return
	}
	delete(selector, v1.SupportedMachineTypeLabel+spec.Type)
	selector[label] = yes
}

// avoid keeps the Pod from every node that has one of the VMI's Pods.
func avoid(spec *corev1.PodSpec, vmi *v1.VirtualMachineInstance) {
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.PodAntiAffinity == nil {
		spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{}
	}
	rules := &spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	*rules = append(*rules, corev1.PodAffinityTerm{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{v1.AppLabel: LauncherAppValue, v1.CreatedByLabel: string(vmi.UID)}},
		TopologyKey:   corev1.LabelHostname,
	})
}

// awaitGuest puts the liveness probe off until the guest has come: the kubelet would end a Pod whose guest is still elsewhere.
func awaitGuest(compute *corev1.Container) {
	if compute.LivenessProbe == nil {
		return
	}
	arrival := compute.LivenessProbe.DeepCopy()
	arrival.FailureThreshold = math.MaxInt32
	arrival.TerminationGracePeriodSeconds = nil
	compute.StartupProbe = arrival
}
