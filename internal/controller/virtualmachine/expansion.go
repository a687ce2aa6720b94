// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/optimistic"
)

// expandedTemplate returns the VM's template with instance type and preference applied. It must not be changed.
func (s *Scope) expandedTemplate(ctx context.Context) (*v1.VirtualMachineInstanceTemplateSpec, error) {
	if !hasReferences(&s.VM.Spec) {
		return s.VM.Spec.Template, nil
	}
	specs, err := s.specs(ctx)
	if err != nil {
		return nil, err
	}
	template, conflicts := instancetype.Expand(reference.TemplateOf(&s.VM.Spec, specs), specs.Instancetype,
		specs.Preference)
	if len(conflicts) > 0 {
		return nil, &referenceError{
			reason: ReasonFailedCreate, action: actionStart, formats: createFailed,
			err: fmt.Errorf("Failed to apply instancetype: %w", conflicts.ErrVMI()), //nolint:staticcheck // KubeVirt's text
		}
	}
	return template, nil
}

// templates returns the expanded template from which the instance was made, and the one that the VM has now. base is
// nil if one of them is unknown.
func (s *Scope) templates(ctx context.Context) (base, template *v1.VirtualMachineInstanceTemplateSpec, err error) {
	if hasReferences(&s.VM.Spec) && !s.resolved {
		return nil, s.VM.Spec.Template, nil
	}
	started, err := StartedSpec(ctx, s)
	if err != nil || started == nil {
		return nil, s.VM.Spec.Template, err
	}
	if !hasReferences(&s.VM.Spec) && !hasReferences(started) {
		return started.Template, s.VM.Spec.Template, nil
	}
	specs, err := s.specs(ctx)
	if err != nil {
		return nil, nil, err
	}
	template, conflicts := instancetype.Expand(reference.TemplateOf(&s.VM.Spec, specs), specs.Instancetype,
		specs.Preference)
	if len(conflicts) > 0 {
		return nil, nil, &referenceError{reason: ReasonFailedUpdate, formats: verbatim, err: conflicts.ErrVM()}
	}
	var earlier reference.Specs
	for _, class := range reference.Classes {
		matcher := class.MatcherOf(started)
		if matcher == nil {
			continue
		}
		object := s.references[class]
		if matcher.RevisionName == "" && reference.Ignores(matcher) {
			continue // The volume named none.
		}
		if matcher.RevisionName == "" {
			return nil, template, nil
		}
		ref := s.referenceRefs[class]
		if ref == nil || ref.ControllerRevisionRef == nil || ref.ControllerRevisionRef.Name != matcher.RevisionName {
			var unknown *referenceError
			if object, err = s.referenced(ctx, class, matcher.RevisionName); errors.As(err, &unknown) {
				return nil, template, nil
			}
			if err != nil {
				return nil, nil, err
			}
		}
		earlier.Add(object)
	}
	if base, conflicts = instancetype.Expand(reference.TemplateOf(started, earlier), earlier.Instancetype,
		earlier.Preference); len(conflicts) > 0 {
		return nil, template, nil
	}
	return base, template, nil
}

// nameReferences annotates an instance with the names of what was applied to it.
func nameReferences(vmi *v1.VirtualMachineInstance, status *v1.VirtualMachineStatus) {
	for _, class := range reference.Classes {
		ref := class.RefOf(status)
		if ref == nil || ref.Name == "" {
			continue
		}
		annotation := class.ClusterAnnotation
		if kind, err := class.KindOf(ref.Kind); err == nil && kind.Namespaced {
			annotation = class.NamespacedAnnotation
		}
		metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, annotation, ref.Name)
	}
}

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
