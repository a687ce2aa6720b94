// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/optimistic"
)

// expandsReferences reports whether the configuration says to write what the VM refers to into the VM: with the policy
// expand unless the VM has a ControllerRevision, and with expandAll always.
func (s *Scope) expandsReferences() bool {
	if s.inferenceWaits || !hasReferences(&s.VM.Spec) {
		return false
	}
	if s.ReferencePolicy != v1.Expand {
		return s.ReferencePolicy == v1.ExpandAll
	}
	for _, class := range reference.Classes {
		if ref := class.RefOf(&s.VM.Status); ref != nil && ref.ControllerRevisionRef != nil {
			return false
		}
	}
	return true
}

// expandReferences writes what the VM refers to into its spec, and removes the references. The ControllerRevisions that
// are no longer used are deleted after the status was written.
func (s *Scope) expandReferences(ctx context.Context) error {
	specs, err := s.specs(ctx)
	if err != nil {
		return err
	}
	expanded, conflicts := reference.ExpandVM(s.VM, specs)
	if len(conflicts) > 0 {
		return &referenceError{reason: ReasonFailedUpdate, formats: verbatim, err: conflicts.ErrVM()}
	}
	changed, err := optimistic.Patch(ctx, s.Client, s.VM, func(vm *v1.VirtualMachine) { vm.Spec = expanded.Spec })
	if err != nil {
		return fmt.Errorf("write the expanded spec of VirtualMachine %s: %w", client.ObjectKeyFromObject(s.VM), err)
	}
	s.VM, s.referenceRefs, s.resolved = changed, nil, true
	for _, class := range reference.Classes {
		class.SetRef(&s.Status, nil)
	}
	return nil
}
