// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/vireo-project/vireo/internal/fieldsupport"
)

// refuseUnimplemented keeps a VMI from starting that asks for something that nothing implements. Admission took it, since
// KubeVirt would, and warned. It waits rather than fails: with a version that has the field, it starts.
func refuseUnimplemented(_ context.Context, s *Scope) error {
	if !s.preparing() || s.Pod != nil || s.Problem != nil {
		return nil
	}
	refused := fieldsupport.Refusals(fieldsupport.InVMI(field.NewPath("spec"), &s.VMI.Spec))
	if len(refused) == 0 {
		return nil
	}
	s.Problem = &Problem{Reason: fieldsupport.ReasonNotImplemented, Message: refused.ToAggregate().Error()}
	return nil
}
