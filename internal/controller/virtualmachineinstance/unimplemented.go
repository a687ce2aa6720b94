// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/vireo-project/vireo/internal/faults"
	"github.com/vireo-project/vireo/internal/fieldsupport"
	"github.com/vireo-project/vireo/internal/impossible"
)

// refuseUnimplemented keeps a VMI from starting that asks for something that nothing implements, or that no guest can
// have. Admission took it, since KubeVirt would, and warned. It waits rather than fails: with a version that has the
// field, it starts.
func refuseUnimplemented(_ context.Context, s *Scope) error {
	if !s.preparing() || s.Pod != nil || s.Problem != nil {
		return nil
	}
	spec := field.NewPath("spec")
	refused := fieldsupport.Refusals(fieldsupport.InVMI(spec, &s.VMI.Spec))
	refused = append(refused, fieldsupport.Refusals(fieldsupport.InAnnotations(field.NewPath("metadata"), s.VMI.Annotations))...)
	if len(refused) > 0 {
		s.Problem = &Problem{Reason: fieldsupport.ReasonNotImplemented, Message: faults.Join(refused).Error()}
		return nil
	}
	if wrong := impossible.InVMI(spec, &s.VMI.Spec); len(wrong) > 0 {
		s.Problem = &Problem{Reason: impossible.Reason, Message: faults.Join(wrong).Error()}
	}
	return nil
}
