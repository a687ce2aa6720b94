// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package common

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
)

// Labels of preferences.
const (
	systemLabel           = prefix + "os-type"
	archLabel             = prefix + "arch"
	preferredArchLabel    = prefix + "preferred-architecture"
	requiredArchLabel     = prefix + "required-architecture"
	requiredCPUsLabel     = prefix + "required-cpu"
	requiredMemoryLabel   = prefix + "required-memory"
	iconAnnotation        = "iconClass"
	tagsAnnotation        = "tags"
	displayNameAnnotation = "openshift.io/display-name"
	providerAnnotation    = "openshift.io/provider-display-name"
	docsAnnotation        = "openshift.io/documentation-url"
)

// Values of annotations. KubeVirt's objects also have openshift.io/support-url with the address of KubeVirt's issues,
// but defects of these objects are Vireo's. Their documentation URL is in quotes and ends with a line break, so that it
// cannot be used as a link.
const (
	commonTags = "hidden,kubevirt"
	provider   = "KubeVirt"
	docsURL    = "https://github.com/kubevirt/common-instancetypes"
)

// Preferences returns the common preferences. The caller owns them.
func Preferences() []*v1beta1.VirtualMachineClusterPreference {
	var all []*v1beta1.VirtualMachineClusterPreference
	for i := range systems {
		g := &systems[i]
		for j := range g.systems {
			all = append(all, g.preference(&g.systems[j]))
		}
	}
	return all
}

func (g *group) preference(s *system) *v1beta1.VirtualMachineClusterPreference {
	spec, tags := s.spec(), []string{commonTags, g.tags}
	for _, t := range s.traits {
		if t.tag != "" {
			tags = append(tags, t.tag)
		}
	}
	return &v1beta1.VirtualMachineClusterPreference{
		TypeMeta: metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "VirtualMachineClusterPreference"},
		ObjectMeta: metav1.ObjectMeta{
			Name:   s.name,
			Labels: s.labels(&spec),
			Annotations: map[string]string{
				iconAnnotation: g.icon, tagsAnnotation: strings.Join(tags, ","), displayNameAnnotation: s.title,
				providerAnnotation: provider, docsAnnotation: docsURL,
			},
		},
		Spec: spec,
	}
}

func (s *system) spec() v1beta1.VirtualMachinePreferenceSpec {
	var spec v1beta1.VirtualMachinePreferenceSpec
	if s.cpus > 0 {
		need(&spec.Requirements).CPU = &v1beta1.CPUPreferenceRequirement{Guest: s.cpus}
	}
	if s.memory != "" {
		need(&spec.Requirements).Memory = &v1beta1.MemoryPreferenceRequirement{Guest: resource.MustParse(s.memory)}
	}
	for _, t := range s.traits {
		t.apply(&spec)
	}
	return spec
}

// labels returns the labels of a system with a spec. The value for the memory is the text in the table, because a
// Quantity formats 1.5Gi differently.
func (s *system) labels(spec *v1beta1.VirtualMachinePreferenceSpec) map[string]string {
	labels := commonLabels()
	labels[systemLabel] = spec.Annotations[systemAnnotation]
	if s.cpus > 0 {
		labels[requiredCPUsLabel] = strconv.FormatUint(uint64(s.cpus), 10)
	}
	if s.memory != "" {
		labels[requiredMemoryLabel] = s.memory
	}
	if arch := spec.PreferredArchitecture; arch != nil {
		labels[archLabel], labels[preferredArchLabel], labels[requiredArchLabel] = *arch, *arch, *arch
	}
	return labels
}
