// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/vireo-project/vireo/internal/specsupport"
)

// refuseUnimplemented delays a VMI that needs what is not implemented, or what is impossible. Admission accepts it with
// a warning, as KubeVirt would. The VMI waits rather than fails: it starts with a version that implements the field.
func (s *scope) refuseUnimplemented(_ context.Context) error {
	if !s.preparing() || s.pod != nil || s.problem != nil {
		return nil
	}
	spec := field.NewPath("spec")
	refused := specsupport.Refusals(specsupport.UnimplementedInVMI(spec, &s.vmi.Spec))
	refused = append(refused,
		specsupport.Refusals(specsupport.UnimplementedInAnnotations(field.NewPath("metadata"), s.vmi.Annotations))...)
	if len(refused) > 0 {
		s.problem = &problem{reason: specsupport.ReasonNotImplemented, message: specsupport.JoinErrors(refused).Error()}
		return nil
	}
	if wrong := specsupport.ImpossibleInVMI(spec, &s.vmi.Spec); len(wrong) > 0 {
		s.problem = &problem{reason: specsupport.ReasonImpossible, message: specsupport.JoinErrors(wrong).Error()}
	}
	return nil
}
