// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reference

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// Finder finds the instance types and preferences to which VMs refer.
type Finder struct {
	// Objects reads instance types and preferences.
	Objects client.Reader
	// Revisions reads ControllerRevisions with their data, which the manager's cache does not have.
	Revisions client.Reader
}

// Specs are the specs that are applied to a VM. Each may be nil.
type Specs struct {
	Instancetype *v1beta1.VirtualMachineInstancetypeSpec
	Preference   *v1beta1.VirtualMachinePreferenceSpec
}

// Find returns the specs to which a VM refers, from its ControllerRevisions, or else from the objects.
func (f Finder) Find(ctx context.Context, vm *v1.VirtualMachine) (Specs, error) {
	var specs Specs
	for _, class := range Classes {
		object, err := f.find(ctx, class, vm)
		if err != nil {
			return Specs{}, err
		}
		specs.Add(object)
	}
	return specs, nil
}

// Add sets the spec of an instance type or of a preference. It ignores nil.
func (s *Specs) Add(object client.Object) {
	if spec := InstancetypeSpec(object); spec != nil {
		s.Instancetype = spec
	}
	if spec := PreferenceSpec(object); spec != nil {
		s.Preference = spec
	}
}

func (f Finder) find(ctx context.Context, class *Class, vm *v1.VirtualMachine) (client.Object, error) {
	matcher := class.MatcherOf(&vm.Spec)
	if matcher == nil {
		return nil, nil
	}
	if ref := class.RefOf(&vm.Status); ref != nil && ref.Name == "" && Ignores(matcher) && class.refersTo(ref, matcher) {
		return nil, nil // The volume names none.
	}
	if name := class.RevisionOf(vm); name != "" {
		return f.Stored(ctx, class, client.ObjectKey{Namespace: vm.Namespace, Name: name})
	}
	return f.Object(ctx, class, vm.Namespace, matcher)
}

// Stored returns the object in a ControllerRevision.
func (f Finder) Stored(ctx context.Context, class *Class, key client.ObjectKey) (client.Object, error) {
	revision := &appsv1.ControllerRevision{}
	if err := f.Revisions.Get(ctx, key, revision); err != nil {
		return nil, fmt.Errorf("get ControllerRevision %s: %w", key, err)
	}
	return class.Decode(revision)
}

// Object returns the object that a matcher of a VM in the namespace names. If it does not exist, the error has
// KubeVirt's text.
func (f Finder) Object(
	ctx context.Context, class *Class, namespace string, matcher *v1.InstancetypeMatcher,
) (client.Object, error) {
	kind, err := class.KindOf(matcher.Kind)
	if err != nil {
		return nil, err
	}
	if matcher.Name == "" {
		return nil, fmt.Errorf("the %s has no name", class.Matcher)
	}
	key := client.ObjectKey{Name: matcher.Name}
	if kind.Namespaced {
		key.Namespace = namespace
	}
	object := kind.New()
	switch err := f.Objects.Get(ctx, key, object); {
	case apierrors.IsNotFound(err):
		// The error of a cache contains the kind instead of the resource.
		return nil, apierrors.NewNotFound(kind.GroupResource(), matcher.Name)
	case err != nil:
		return nil, fmt.Errorf("get %s %s: %w", kind.Name, key, err)
	}
	return object, nil
}
