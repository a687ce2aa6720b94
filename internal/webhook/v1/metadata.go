// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/machinetype"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// reservedLabels are labels that the controllers and the agents read, and that only these may write. The list is
// KubeVirt's.
var reservedLabels = []string{
	v1.CreatedByLabel,
	v1.MigrationJobLabel,
	v1.NodeNameLabel,
	v1.MigrationTargetNodeNameLabel,
	v1.NodeSchedulable,
	"kubevirt.io/install-strategy",
}

// validateMetadata rejects reserved labels in the metadata of a VMI, or of a VM's template, if an untrusted user writes
// them.
func validateMetadata(path *field.Path, meta *metav1.ObjectMeta, trusted bool) field.ErrorList {
	var errs field.ErrorList
	if !trusted {
		for _, label := range reservedLabels {
			if _, set := meta.Labels[label]; set {
				errs = append(errs, field.Forbidden(path.Child("labels").Key(label),
					"creation of the following reserved kubevirt.io/ labels on a VMI object is prohibited"))
			}
		}
	}
	return errs
}

// validateAnnotations refuses annotations whose feature gate is not enabled. With the gate enabled they are admitted,
// as in KubeVirt, and package specsupport warns if they are not implemented.
func validateAnnotations(path *field.Path, meta *metav1.ObjectMeta, config clusterconfig.Config) field.ErrorList {
	var errs field.ErrorList
	for _, a := range []struct{ annotation, gate string }{
		{v1.IgnitionAnnotation, gateIgnition},
		{specsupport.HookSidecarAnnotation, gateSidecar},
	} {
		if meta.Annotations[a.annotation] != "" && !config.IsEnabled(a.gate) {
			errs = append(errs, field.Forbidden(path.Child("annotations").Key(a.annotation),
				a.gate+" feature gate is not enabled in kubevirt-config"))
		}
	}
	return errs
}

// changedReservedLabels returns the reserved labels that differ between two versions of a VMI.
func changedReservedLabels(before, after map[string]string) []string {
	return slices.DeleteFunc(slices.Clone(reservedLabels), func(label string) bool {
		b, inBefore := before[label]
		a, inAfter := after[label]
		return inBefore == inAfter && a == b
	})
}

// instanceWarnings returns warnings about settings in a VMI's spec and annotations that have no effect or another one,
// because they are not implemented, no guest can have them, or only another build of QEMU has them.
func instanceWarnings(
	spec, metadata *field.Path, vmi *v1.VirtualMachineInstanceSpec, annotations map[string]string,
) []string {
	warnings := specsupport.Warnings(specsupport.UnimplementedInVMI(spec, vmi))
	warnings = append(warnings, specsupport.Warnings(specsupport.UnimplementedInAnnotations(metadata, annotations))...)
	if machine := vmi.Domain.Machine; machine != nil {
		if replaced := machinetype.Replaced(machine.Type); replaced != "" {
			warnings = append(warnings, spec.Child("domain", "machine", "type").String()+": "+replaced)
		}
	}
	for _, err := range specsupport.LimitErrors(specsupport.ImpossibleInVMI(spec, vmi)) {
		warnings = append(warnings, err.Field+" keeps the VM from starting: "+err.ErrorBody())
	}
	return warnings
}
