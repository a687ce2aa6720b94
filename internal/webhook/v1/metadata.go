// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/faults"
	"github.com/vireo-project/vireo/internal/fieldsupport"
	"github.com/vireo-project/vireo/internal/impossible"
)

// reservedLabels steer controllers and agents; only they may write them. The list is KubeVirt's.
var reservedLabels = []string{
	v1.CreatedByLabel,
	v1.MigrationJobLabel,
	v1.NodeNameLabel,
	v1.MigrationTargetNodeNameLabel,
	v1.NodeSchedulable,
	"kubevirt.io/install-strategy",
}

// validateMetadata looks at what a person may write into the metadata of a VMI or of a VM's template.
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

// validateAnnotations reports what is behind a gate that is closed. What is behind an open one and not implemented is
// taken, as KubeVirt does, and warned about by package fieldsupport.
func validateAnnotations(path *field.Path, meta *metav1.ObjectMeta, config clusterconfig.Config) field.ErrorList {
	var errs field.ErrorList
	for _, a := range []struct{ annotation, gate string }{
		{v1.IgnitionAnnotation, gateIgnition},
		{fieldsupport.HookSidecarAnnotation, gateSidecar},
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
		b, had := before[label]
		a, has := after[label]
		return had == has && a == b
	})
}

// warnings are what an author should know of a VMI that is taken: what nothing implements, and what keeps it from
// starting.
func warnings(spec, metadata *field.Path, vmi *v1.VirtualMachineInstanceSpec, annotations map[string]string) []string {
	sentences := fieldsupport.Sentences(fieldsupport.InVMI(spec, vmi))
	sentences = append(sentences, fieldsupport.Sentences(fieldsupport.InAnnotations(metadata, annotations))...)
	for _, wrong := range faults.Some(impossible.InVMI(spec, vmi)) {
		sentences = append(sentences, wrong.Field+" keeps the VM from starting: "+wrong.ErrorBody())
	}
	return sentences
}
