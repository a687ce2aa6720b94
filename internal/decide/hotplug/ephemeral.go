// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hotplug

import (
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// EphemeralAnnotation of a VM's VMI is a JSON list of the volumes that were plugged into the VMI only: the VM's
// template does not have them, and the next VMI of the VM does not get them. KubeVirt has the same annotation
// (pkg/virt-controller/watch/vm).
const EphemeralAnnotation = "kubevirt.io/ephemeral-hotplug-volumes"

// Ephemeral returns the volumes that were plugged into a VMI only.
func Ephemeral(vmi *v1.VirtualMachineInstance) []string {
	var names []string
	if json.Unmarshal([]byte(vmi.Annotations[EphemeralAnnotation]), &names) != nil {
		return nil // Another client has written it, and no volume is known to be plugged into the VMI only.
	}
	return names
}

// SetEphemeral sets the volumes that were plugged into a VMI only.
func SetEphemeral(vmi *v1.VirtualMachineInstance, names []string) {
	if len(names) == 0 {
		delete(vmi.Annotations, EphemeralAnnotation)
		return
	}
	text, _ := json.Marshal(names) // strings always have an encoding
	metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, EphemeralAnnotation, string(text))
}

// WithEphemeral returns a template with the volumes that were plugged into a VMI only, for Follow, which would unplug
// them otherwise. A volume that the template has got since belongs to the VM, so it leaves the VMI's list.
func WithEphemeral(
	vmi *v1.VirtualMachineInstance, template *v1.VirtualMachineInstanceSpec,
) *v1.VirtualMachineInstanceSpec {
	names := Ephemeral(vmi)
	kept := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return FindVolume(template, name) != nil })
	if len(kept) < len(names) {
		SetEphemeral(vmi, kept)
	}
	out := template.DeepCopy()
	for _, name := range kept {
		volume, disk := FindVolume(&vmi.Spec, name), vmistatus.FindDisk(&vmi.Spec, name)
		if volume != nil && disk != nil && volume.IsHotpluggable() {
			Add(out, volume, disk)
		}
	}
	return out
}
