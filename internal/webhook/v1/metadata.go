// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// hookSidecarAnnotation asks for containers that change the domain (KubeVirt: pkg/hooks).
const hookSidecarAnnotation = "hooks.kubevirt.io/hookSidecars"

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

// validateAnnotations refuses annotations that would make the guest another one if something implemented them.
func validateAnnotations(path *field.Path, meta *metav1.ObjectMeta, config clusterconfig.Config) field.ErrorList {
	var errs field.ErrorList
	for _, a := range []struct{ annotation, gate, what string }{
		{v1.IgnitionAnnotation, gateIgnition, "Ignition data is"},
		{hookSidecarAnnotation, gateSidecar, "hook sidecars are"},
	} {
		if meta.Annotations[a.annotation] == "" {
			continue
		}
		message := a.what + " not implemented yet: use cloud-init"
		if !config.IsEnabled(a.gate) {
			message = a.gate + " feature gate is not enabled in kubevirt-config, and " + message
		}
		errs = append(errs, field.Forbidden(path.Child("annotations").Key(a.annotation), message))
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
