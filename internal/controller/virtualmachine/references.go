// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/outcome"
)

// actionFind is the action of events about instance types and preferences.
const actionFind = "FindInstancetype"

// storeFailure is KubeVirt's format of the failure to store an instance type or a preference.
const storeFailure = "error encountered while storing instancetype.kubevirt.io controllerRevisions: %v"

// revisionRetry is the delay before a retry for a missing ControllerRevision: only those that virt-controller created
// are watched. It is long, because each retry is a request to the API server.
const revisionRetry = 5 * time.Minute

// verbatim are the formats of failures whose event and condition have the text of the error.
var verbatim = failureFormats{event: "%v", condition: "%v"}

// referenceError is why the instance type or the preference of a VM cannot be found, stored or applied. It is the VM's
// failure, and no error of the reconciliation: a watch triggers the next one when a missing object appears.
type referenceError struct {
	reason  string
	formats failureFormats
	err     error
	// retry is the delay before the next reconciliation if no watch triggers one when what is missing appears, or zero.
	retry time.Duration
	// action is the action of the event. Default: actionFind.
	action string
}

func (e *referenceError) Error() string { return e.err.Error() }

func (e *referenceError) Unwrap() error { return e.err }

// failReference sets the VM's failure for a referenceError, unless it has one. It returns every other error.
func (s *Scope) failReference(err error) error {
	var failed *referenceError
	if !errors.As(err, &failed) {
		return err
	}
	if s.Failure == nil {
		s.fail(failed.reason, cmp.Or(failed.action, actionFind), failed.err, failed.formats)
	}
	if failed.retry > 0 {
		s.RequeueAfter = outcome.Sooner(s.RequeueAfter, failed.retry)
	}
	return nil
}

// notFound returns the error that what a matcher refers to cannot be found.
func notFound(class *reference.Class, err error) *referenceError {
	return &referenceError{reason: class.ReasonNotFound, err: err, formats: verbatim}
}

// notStored returns the error that what a matcher refers to cannot be stored.
func notStored(err error) *referenceError {
	return &referenceError{reason: ReasonFailedCreate, err: err,
		formats: failureFormats{event: storeFailure, condition: storeFailure}}
}

// hasReferences reports whether a VM refers to an instance type or to a preference.
func hasReferences(spec *v1.VirtualMachineSpec) bool {
	return spec.Instancetype != nil || spec.Preference != nil
}

// resolveReferences finds the instance type and the preference of the VM, stores them as they are now in
// ControllerRevisions if the VM refers to them for the first time, and sets the references in the status. It does so
// whether the VM runs or not.
func resolveReferences(ctx context.Context, s *Scope) error {
	refs := map[*reference.Class]*v1.InstancetypeStatusRef{}
	var unstored []client.Object
	for _, class := range reference.Classes {
		matcher := class.MatcherOf(&s.VM.Spec)
		if matcher == nil {
			class.SetRef(&s.Status, nil)
			continue
		}
		if s.Failure != nil || s.VM.Spec.Template == nil {
			return nil
		}
		matcher, err := s.inferred(ctx, class, matcher)
		switch {
		case errors.Is(err, errInferenceWaits):
			s.inferenceWaits = true
			continue
		case err != nil:
			return err
		case matcher.Name == "":
			refs[class] = refOf(matcher, "", "")
			continue
		}
		kind, err := class.KindOf(matcher.Kind)
		if err != nil {
			return notFound(class, err)
		}
		object, err := s.findUnstored(ctx, class, matcher)
		if err != nil {
			return err
		}
		revision := class.RevisionOf(s.VM)
		if object != nil {
			unstored = append(unstored, object)
			revision = reference.RevisionName(s.VM, object)
		}
		// Keep the user's spelling of the kind: KubeVirt treats another spelling as another kind.
		refs[class] = refOf(matcher, cmp.Or(matcher.Kind, kind.Name), revision)
	}
	s.referenceRefs = refs
	if s.expandsReferences() {
		return s.expandReferences(ctx)
	}
	if err := s.storeReferences(ctx, unstored); err != nil {
		return err
	}
	for class, ref := range refs {
		class.SetRef(&s.Status, ref)
	}
	s.resolved = !s.inferenceWaits
	return nil
}

// refOf returns the reference in the status for a matcher. Without a revision, it records that a volume names nothing.
func refOf(matcher *v1.InstancetypeMatcher, kind, revision string) *v1.InstancetypeStatusRef {
	ref := &v1.InstancetypeStatusRef{
		Name: matcher.Name, Kind: kind,
		InferFromVolume: matcher.InferFromVolume, InferFromVolumeFailurePolicy: matcher.InferFromVolumeFailurePolicy,
	}
	if revision != "" {
		ref.ControllerRevisionRef = &v1.ControllerRevisionRef{Name: revision}
	}
	return ref
}

// findUnstored returns the object that a matcher refers to if it has to be stored: the VM refers to it for the first
// time, or its ControllerRevision has an old form.
func (s *Scope) findUnstored(
	ctx context.Context, class *reference.Class, matcher *v1.InstancetypeMatcher,
) (client.Object, error) {
	name := class.RevisionOf(s.VM)
	if name == "" {
		object, err := s.finder().Object(ctx, class, s.VM.Namespace, matcher)
		if apierrors.IsNotFound(err) {
			failed := notFound(class, err)
			if matcher.InferFromVolume != "" {
				failed.retry = s.importRetry()
			}
			return nil, failed
		}
		s.found(class, object)
		return object, err
	}
	if ref := class.RefOf(&s.VM.Status); ref == nil || ref.ControllerRevisionRef == nil ||
		ref.ControllerRevisionRef.Name != name {
		// The matcher names the revision.
		_, err := s.referenced(ctx, class, name)
		return nil, err
	}
	if matcher.RevisionName != "" {
		return nil, nil
	}
	return s.upgradeRevision(ctx, class, name)
}

// referenced returns the object in a ControllerRevision of the VM's namespace.
func (s *Scope) referenced(ctx context.Context, class *reference.Class, name string) (client.Object, error) {
	object, err := s.finder().Stored(ctx, class, client.ObjectKey{Namespace: s.VM.Namespace, Name: name})
	switch {
	case apierrors.IsNotFound(err):
		failed := notFound(class, err)
		failed.retry = revisionRetry
		return nil, failed
	case errors.Is(err, reference.ErrUnusable):
		return nil, notFound(class, err)
	case err != nil:
		return nil, err
	}
	return object, nil
}

// found keeps an object for the rest of the reconciliation.
func (s *Scope) found(class *reference.Class, object client.Object) {
	if s.references == nil {
		s.references = map[*reference.Class]client.Object{}
	}
	s.references[class] = object
}

func (s *Scope) finder() reference.Finder {
	return reference.Finder{Objects: s.Client, Revisions: s.APIReader}
}

// specs returns the specs of what the VM refers to, after resolveReferences.
func (s *Scope) specs(ctx context.Context) (reference.Specs, error) {
	var specs reference.Specs
	for class, ref := range s.referenceRefs {
		if ref.ControllerRevisionRef == nil {
			continue
		}
		object := s.references[class]
		if object == nil {
			var err error
			if object, err = s.referenced(ctx, class, ref.ControllerRevisionRef.Name); err != nil {
				return reference.Specs{}, err
			}
			s.found(class, object)
		}
		specs.Add(object)
	}
	return specs, nil
}

// storeReferences stores objects in ControllerRevisions, unless they conflict with the VM's template.
func (s *Scope) storeReferences(ctx context.Context, unstored []client.Object) error {
	if len(unstored) == 0 {
		return nil
	}
	specs, err := s.specs(ctx)
	if err != nil {
		return err
	}
	if s.VM.Spec.Template != nil {
		if _, conflicts := instancetype.Expand(reference.TemplateOf(&s.VM.Spec, specs), specs.Instancetype,
			specs.Preference); len(conflicts) > 0 {
			return notStored(conflicts.ErrStore())
		}
	}
	for _, object := range unstored {
		if err := s.storeReference(ctx, object); err != nil {
			failed := notStored(err)
			return errors.Join(s.failReference(failed), err)
		}
	}
	return nil
}

// storeReference creates the ControllerRevision with an object, if it does not exist.
func (s *Scope) storeReference(ctx context.Context, object client.Object) error {
	revision, err := reference.NewRevision(s.VM, object)
	if err != nil {
		return err
	}
	err = s.Client.Create(ctx, revision.DeepCopy())
	if !apierrors.IsAlreadyExists(err) {
		if err != nil {
			return fmt.Errorf("create ControllerRevision %s: %w", revision.Name, err)
		}
		return nil
	}
	existing, key := &appsv1.ControllerRevision{}, client.ObjectKeyFromObject(revision)
	if err := s.APIReader.Get(ctx, key, existing); err != nil {
		return fmt.Errorf("get ControllerRevision %s: %w", key, err)
	}
	owner := metav1.GetControllerOf(existing)
	earlier := owner != nil && owner.Kind == v1.VirtualMachineGroupVersionKind.Kind && owner.UID != s.VM.UID &&
		owner.Name == s.VM.Name
	stored, err := reference.ClassOf(object).Decode(existing)
	switch {
	case !earlier && (err != nil || !reference.SameSpec(stored, object)):
		return fmt.Errorf("found existing ControllerRevision with unexpected data: %s", revision.Name)
	case !earlier && owner != nil:
		return nil
	}
	// It belongs to an earlier VM of this name, and the garbage collector is about to delete it, or it was orphaned.
	err = s.Client.Delete(ctx, existing, client.Preconditions{UID: ptr.To(existing.UID)})
	if client.IgnoreNotFound(err) == nil {
		err = s.Client.Create(ctx, revision)
	}
	if err != nil {
		return fmt.Errorf("replace ControllerRevision %s, which is not the VirtualMachine's: %w", key, err)
	}
	return nil
}

// upgradeRevision gives a ControllerRevision that KubeVirt created today's labels and form, so that it is in the cache
// and can be orphaned. If an earlier version of KubeVirt created it, it has another name: then its object is returned,
// to be stored again.
func (s *Scope) upgradeRevision(ctx context.Context, class *reference.Class, name string) (client.Object, error) {
	listed, err := listRevisions(ctx, s)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(listed, func(r metav1.PartialObjectMetadata) bool { return r.Name == name }) {
		return nil, nil
	}
	revision, key := &appsv1.ControllerRevision{}, client.ObjectKey{Namespace: s.VM.Namespace, Name: name}
	switch err := s.APIReader.Get(ctx, key, revision); {
	case apierrors.IsNotFound(err):
		failed := notFound(class, fmt.Errorf("get ControllerRevision %s: %w", key, err))
		failed.retry = revisionRetry
		return nil, failed
	case err != nil:
		return nil, fmt.Errorf("get ControllerRevision %s: %w", key, err)
	}
	if !metav1.IsControlledBy(revision, s.VM) {
		return nil, nil
	}
	if reference.IsLatest(revision.Labels) {
		return nil, s.sorter().Sort(ctx, key, nil)
	}
	object, err := class.Decode(revision)
	if err != nil {
		return nil, notFound(class, err)
	}
	if reference.RevisionName(s.VM, object) == name {
		return nil, nil
	}
	s.found(class, object)
	s.replaced = append(s.replaced, revision)
	return object, nil
}

// deleteReferences deletes the ControllerRevisions with instance types and preferences that neither the VM nor the spec
// that its instance was started with refers to. It runs after the status was written.
func deleteReferences(ctx context.Context, s *Scope) error {
	if s.VM.DeletionTimestamp != nil || s.beingRestored() {
		return nil
	}
	for _, revision := range s.replaced {
		if alive(s) || !s.resolved {
			break // The status, or KubeVirt's record of the spec that the instance was started with, still names it.
		}
		if err := s.deleteRevision(ctx, revision); err != nil {
			return err
		}
	}
	revisions, err := listRevisions(ctx, s)
	if err != nil {
		return err
	}
	used := usedRevisions(s.VM)
	started := !alive(s)
	for i := range revisions {
		for _, class := range reference.Classes {
			used[revisions[i].Annotations[referenceAnnotation(class)]] = true
		}
		started = started || revisions[i].Name == startedFrom(s)
	}
	if !started {
		return nil // KubeVirt started this instance, so its revisions are unknown: delete none.
	}
	unused := slices.DeleteFunc(revisions,
		func(r metav1.PartialObjectMetadata) bool { return !reference.IsRevision(r.Labels) || used[r.Name] })
	if len(unused) == 0 {
		return nil
	}
	// The cache may be behind, and the VM refer to them.
	fresh, key := &v1.VirtualMachine{}, client.ObjectKeyFromObject(s.VM)
	if err := s.APIReader.Get(ctx, key, fresh); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("get VirtualMachine %s: %w", key, err))
	}
	if fresh.ResourceVersion != s.VM.ResourceVersion {
		return nil // A change of the VM triggers the next reconciliation.
	}
	for i := range unused {
		revision := &appsv1.ControllerRevision{ObjectMeta: unused[i].ObjectMeta}
		if err := s.deleteRevision(ctx, revision); err != nil {
			return err
		}
	}
	return nil
}

// usedRevisions returns the names of the ControllerRevisions to which the VM refers.
func usedRevisions(vm *v1.VirtualMachine) map[string]bool {
	used := map[string]bool{}
	for _, class := range reference.Classes {
		if ref := class.RefOf(&vm.Status); ref != nil && ref.ControllerRevisionRef != nil {
			used[ref.ControllerRevisionRef.Name] = true
		}
		used[class.RevisionOf(vm)] = true
	}
	return used
}

// deleteRevision deletes a ControllerRevision unless it was replaced meanwhile.
func (s *Scope) deleteRevision(ctx context.Context, revision *appsv1.ControllerRevision) error {
	err := s.Client.Delete(ctx, revision, client.Preconditions{UID: ptr.To(revision.UID)})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete ControllerRevision %s: %w", revision.Name, err)
	}
	return nil
}

// referenceAnnotation is the annotation of a start revision with the name of the ControllerRevision that the instance
// was started with. It is Vireo's own: the name is in the data as well, which the cache does not have.
func referenceAnnotation(class *reference.Class) string {
	return "kubevirt.io/" + class.Field + "-revision"
}
