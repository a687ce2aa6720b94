// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/machinetype"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// Policies of a CPU feature that restrict the choice of the node.
const (
	featureRequire = "require"
	featureForbid  = "forbid"
)

const yes = "true"

// schedule sets the scheduling constraints.
func schedule(spec *corev1.PodSpec, vmi *v1.VirtualMachineInstance, cfg Config) {
	spec.NodeSelector = nodeSelector(vmi, cfg)
	spec.Affinity = affinity(vmi, cfg)
	for i := range cfg.VolumeAffinities {
		requireNodes(spec, &cfg.VolumeAffinities[i])
	}
	spec.Tolerations = vmi.Spec.Tolerations
	spec.TopologySpreadConstraints = vmi.Spec.TopologySpreadConstraints
	spec.PriorityClassName = vmi.Spec.PriorityClassName
	spec.SchedulerName = vmi.Spec.SchedulerName
}

func architecture(vmi *v1.VirtualMachineInstance, cfg Config) string {
	if vmi.Spec.Architecture != "" {
		return vmi.Spec.Architecture
	}
	return cfg.DefaultArchitecture
}

// nodeSelector returns the user's node selector, the cluster's, and the labels of nodes that can run the guest. The
// last take precedence.
func nodeSelector(vmi *v1.VirtualMachineInstance, cfg Config) map[string]string {
	out := map[string]string{}
	maps.Copy(out, vmi.Spec.NodeSelector)
	maps.Copy(out, cfg.NodeSelectors)
	out[v1.NodeSchedulable] = yes
	if arch := architecture(vmi, cfg); arch != "" {
		out[corev1.LabelArchStable] = arch
	}
	if vmi.IsCPUDedicated() {
		out[v1.CPUManager] = yes
	}
	if cpu := vmi.Spec.Domain.CPU; cpu != nil && cpu.Realtime != nil {
		out[v1.RealtimeLabel] = yes
	}
	if machine := vmi.Spec.Domain.Machine; machine != nil && machine.Type != "" {
		out[machineLabel(machine)] = yes
	}
	if cfg.UseEmulation {
		return out // The CPU is emulated: the node's does not matter.
	}
	cpu := vmi.Spec.Domain.CPU
	if cpu == nil {
		return out
	}
	if cpu.Model != "" && cpu.Model != v1.CPUModeHostModel && cpu.Model != v1.CPUModeHostPassthrough {
		out[v1.CPUModelLabel+cpu.Model] = yes
	}
	for _, feature := range cpu.Features {
		if feature.Policy == "" || feature.Policy == featureRequire {
			out[v1.CPUFeatureLabel+feature.Name] = yes
		}
	}
	return out
}

// machineLabel returns the label of nodes on which a guest with the machine type of its spec can start.
func machineLabel(machine *v1.Machine) string {
	return v1.SupportedMachineTypeLabel + machinetype.ForStart(machine.Type)
}

// affinity returns the user's affinity, extended by labels that a node must not have, which a node selector cannot
// express.
func affinity(vmi *v1.VirtualMachineInstance, cfg Config) *corev1.Affinity {
	unwanted := unwantedLabels(vmi, cfg)
	if len(unwanted) == 0 {
		return vmi.Spec.Affinity
	}
	out := vmi.Spec.Affinity
	if out == nil {
		out = &corev1.Affinity{}
	}
	if out.NodeAffinity == nil {
		out.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := out.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		required = &corev1.NodeSelector{}
		out.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = required
	}
	if len(required.NodeSelectorTerms) == 0 {
		required.NodeSelectorTerms = []corev1.NodeSelectorTerm{{}}
	}
	// Terms are ORed, so each of them needs all labels.
	for i := range required.NodeSelectorTerms {
		term := &required.NodeSelectorTerms[i]
		for _, label := range unwanted {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: label, Operator: corev1.NodeSelectorOpDoesNotExist,
			})
		}
	}
	return out
}

// maxVolumeTerms is the limit for the number of nodeSelectorTerms with those of volumes. More than that are not
// combined.
const maxVolumeTerms = 256

// requireNodes restricts a Pod to nodes that a selector selects as well. Terms are ORed, so each of them is combined
// with each of the selector's. A selector that would result in too many terms is left out: then the attachment Pod of
// its volume, which the scheduler does not place on the launcher's node, has the reason.
func requireNodes(spec *corev1.PodSpec, selector *corev1.NodeSelector) {
	if len(selector.NodeSelectorTerms) == 0 {
		return
	}
	var terms []corev1.NodeSelectorTerm
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	if len(terms) == 0 {
		terms = []corev1.NodeSelectorTerm{{}}
	}
	if len(terms)*len(selector.NodeSelectorTerms) > maxVolumeTerms {
		return
	}
	combined := make([]corev1.NodeSelectorTerm, 0, len(terms)*len(selector.NodeSelectorTerms))
	for _, term := range terms {
		for _, other := range selector.NodeSelectorTerms {
			combined = append(combined, corev1.NodeSelectorTerm{
				MatchExpressions: slices.Concat(term.MatchExpressions, other.MatchExpressions),
				MatchFields:      slices.Concat(term.MatchFields, other.MatchFields),
			})
		}
	}
	if spec.Affinity == nil {
		spec.Affinity = &corev1.Affinity{}
	}
	if spec.Affinity.NodeAffinity == nil {
		spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
		NodeSelectorTerms: combined}
}

// maxUnwanted is the limit for the labels that a node must not have, summed over all nodeSelectorTerms. A Pod with more
// is too large for the API server.
const maxUnwanted = 20_000

// checkAffinity refuses an affinity whose terms, multiplied by the unwanted labels, would not fit into
// virt-controller's memory.
func checkAffinity(vmi *v1.VirtualMachineInstance, cfg Config) error {
	if vmi.Spec.Affinity == nil || vmi.Spec.Affinity.NodeAffinity == nil ||
		vmi.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	terms := vmi.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if unwanted := unwantedLabels(vmi, cfg); len(terms)*len(unwanted) > maxUnwanted {
		return fmt.Errorf("each of %d nodeSelectorTerms of spec.affinity would name %d labels that forbidden CPU features require, which is too "+
			"large for a Pod: shorten one of the lists", len(terms), len(unwanted))
	}
	return nil
}

func unwantedLabels(vmi *v1.VirtualMachineInstance, cfg Config) []string {
	cpu := vmi.Spec.Domain.CPU
	if cfg.UseEmulation || cpu == nil {
		return nil
	}
	var out []string
	if cpu.Model == v1.CPUModeHostModel {
		out = append(out, v1.NodeHostModelIsObsoleteLabel)
	}
	for _, feature := range cpu.Features {
		if feature.Policy == featureForbid {
			out = append(out, v1.CPUFeatureLabel+feature.Name)
		}
	}
	slices.Sort(out)
	return out
}

// imageDigest matches the digest at the end of an image reference. The image IDs that some runtimes report do not
// match: they identify the image's configuration, and an image cannot be pulled by them.
var imageDigest = regexp.MustCompile(`@(sha256:[0-9a-f]{64})$`)

// PinnedImages returns references with digests to the image volumes of a launcher Pod, by name of the volume, so that
// another Pod gets the same images. It omits volumes whose digest is not known. The digest is that of the Pod's spec,
// or else of its status, which has it since Kubernetes 1.35 with the feature gate ImageVolumeWithDigest. Source:
// kubevirt/kubevirt pkg/container-disk, ExtractImageIDsFromSourcePod.
func PinnedImages(own *corev1.Pod) map[string]string {
	reported := map[string]string{}
	for i := range own.Status.ContainerStatuses {
		for _, mount := range own.Status.ContainerStatuses[i].VolumeMounts {
			if status := mount.VolumeStatus; status != nil && status.Image != nil {
				reported[mount.Name] = status.Image.ImageRef
			}
		}
	}
	pinned := map[string]string{}
	for i := range own.Spec.Volumes {
		volume := &own.Spec.Volumes[i]
		if volume.Image == nil {
			continue
		}
		reference := volume.Image.Reference
		if strings.Contains(reference, "@") {
			pinned[volume.Name] = reference // It has a digest, of any algorithm.
		} else if found := imageDigest.FindStringSubmatch(reported[volume.Name]); found != nil {
			pinned[volume.Name] = repository(reference) + "@" + found[1]
		}
	}
	return pinned
}

// ImageDigests returns the digests in the image references of a Pod's spec, by mount path in the container compute. The
// volumes of a Pod are immutable, so that two Pods with the same digest have the same files. It does not use the
// digests of the status: the kubelet resolves a tag when it reports the status, and the tag may have moved since it was
// pulled.
func ImageDigests(pod *corev1.Pod) map[string]string {
	digests := map[string]string{}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			if found := imageDigest.FindStringSubmatch(image.Reference); found != nil {
				digests[pod.Spec.Volumes[i].Name] = found[1]
			}
		}
	}
	mounted := map[string]string{}
	compute := podstate.ComputeContainer(pod)
	if compute == nil {
		return mounted
	}
	for _, mount := range compute.VolumeMounts {
		if digest, named := digests[mount.Name]; named && mount.SubPath == "" && mount.SubPathExpr == "" {
			mounted[mount.MountPath] = digest
		}
	}
	return mounted
}

// repository returns a reference without its tag. A port of the registry is not a tag.
func repository(reference string) string {
	if colon := strings.LastIndex(reference, ":"); colon > strings.LastIndex(reference, "/") {
		return reference[:colon]
	}
	return reference
}

func pinImages(spec *corev1.PodSpec, images map[string]string) {
	for i := range spec.Volumes {
		if reference := images[spec.Volumes[i].Name]; reference != "" && spec.Volumes[i].Image != nil {
			spec.Volumes[i].Image.Reference = reference
		}
	}
}
