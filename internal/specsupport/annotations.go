// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package specsupport

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// HookSidecarAnnotation requests sidecar containers that change the domain XML. Source: kubevirt/kubevirt pkg/hooks.
const HookSidecarAnnotation = "hooks.kubevirt.io/hookSidecars"

// AnnotationFields are the unimplemented annotations of a VMI, and of the template of a VM. The paths are their keys.
var AnnotationFields = []Field{
	{v1.IgnitionAnnotation, nil, Refuse, "Ignition data is not implemented yet: use cloud-init"},
	{HookSidecarAnnotation, nil, Refuse, "hook sidecars are not implemented yet: leave it out"},
	{v1.CreateMigrationTarget, []string{"true"}, Refuse, "receiving a guest from another cluster is not implemented yet: leave it out"},

	{v1.MemfdMemoryBackend, []string{"false"}, Warn, "huge pages come from a memfd all the same: the launcher Pod has no mount of them"},
	{v1.PciTopologyVersionAnnotation, nil, Warn,
		"devices have the PCI slots of libvirt's own choice: a guest from KubeVirt may name its network devices anew"},
	{v1.PciInterfaceSlotCountAnnotation, nil, Warn, "no PCI slots are kept for interfaces"},
	{v1.KeepLauncherAfterFailureAnnotation, nil, Warn, "the launcher ends with its guest: read its log with kubectl logs"},
	{v1.CustomLibvirtLogFiltersAnnotation, nil, Warn, "log filters are not implemented yet: libvirt logs as usual"},
}

// UnimplementedInAnnotations returns the unimplemented annotations of a VMI. path is that of its metadata.
func UnimplementedInAnnotations(path *field.Path, annotations map[string]string) []Finding {
	var found []Finding
	for i := range AnnotationFields {
		row := &AnnotationFields[i]
		value := annotations[row.Path]
		if value == "" || len(row.Values) > 0 && !slices.Contains(row.Values, value) {
			continue
		}
		found = append(found, Finding{path.Child("annotations").Key(row.Path), row})
	}
	return found
}
