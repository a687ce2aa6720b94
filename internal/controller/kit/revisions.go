// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/revisiondata"
)

// revisionKind is the kind of ControllerRevisions.
const revisionKind = "ControllerRevision"

// revisionCopySuffix is the suffix of the name of the copy of a ControllerRevision that is being replaced.
const revisionCopySuffix = "-copy"

// OwnRevisions returns the metadata of the ControllerRevisions of an owner from the cache, which does not store their
// data.
func OwnRevisions(
	ctx context.Context, cached client.Reader, owner metav1.Object,
) ([]metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind(revisionKind + "List"))
	err := cached.List(ctx, list, client.InNamespace(owner.GetNamespace()),
		client.MatchingFields{CreatedByIndex: string(owner.GetUID())})
	if err != nil {
		return nil, fmt.Errorf("list the ControllerRevisions of %s/%s: %w", owner.GetNamespace(), owner.GetName(), err)
	}
	return controlledBy(list.Items, owner), nil
}

// LiveRevisions returns the metadata of the ControllerRevisions of an owner from the API server, also those that
// KubeVirt created, which the cache does not have.
func LiveRevisions(
	ctx context.Context, live client.Reader, owner metav1.Object,
) ([]metav1.PartialObjectMetadata, error) {
	var found []metav1.PartialObjectMetadata
	err := EachMetadata(ctx, live, appsv1.SchemeGroupVersion.WithKind(revisionKind), owner.GetNamespace(),
		func(r *metav1.PartialObjectMetadata) {
			if metav1.IsControlledBy(r, owner) {
				found = append(found, *r)
			}
		})
	return found, err
}

// controlledBy returns the revisions that an owner controls. Every user who may write ControllerRevisions can set the
// label.
func controlledBy(revisions []metav1.PartialObjectMetadata, owner metav1.Object) []metav1.PartialObjectMetadata {
	var own []metav1.PartialObjectMetadata
	for i := range revisions {
		if metav1.IsControlledBy(&revisions[i], owner) {
			own = append(own, revisions[i])
		}
	}
	return own
}

// IsRevisionCopy reports whether a ControllerRevision is the copy of one that is being replaced.
func IsRevisionCopy(revision metav1.Object) bool {
	return strings.HasSuffix(revision.GetName(), revisionCopySuffix)
}

// RevisionSorter sorts the keys in the data of an owner's ControllerRevisions, so that the garbage collector can orphan
// them. See package revisiondata.
type RevisionSorter struct {
	// Client writes, APIReader reads from the API server.
	Client    client.Writer
	APIReader client.Reader
	// Owner is the object that controls the revisions.
	Owner metav1.Object
}

// SortAll replaces those of the revisions whose keys are not sorted by ones of the same name and content. The old one
// must be deleted first, so a copy stores the content in between: nothing is lost if virt-controller stops.
func (s RevisionSorter) SortAll(ctx context.Context, revisions []metav1.PartialObjectMetadata) error {
	var failed error
	for i := range revisions {
		key := client.ObjectKeyFromObject(&revisions[i])
		switch name, isCopy := strings.CutSuffix(key.Name, revisionCopySuffix); {
		case isCopy:
			failed = errors.Join(failed, s.finish(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}))
		case !revisiondata.IsSorted(&revisions[i]):
			failed = errors.Join(failed, s.Sort(ctx, key, nil))
		}
	}
	return failed
}

// Sort replaces a revision if its keys are not sorted, and sets the label by which the cache selects revisions, the
// annotation of sorted keys, and the given ones. A revision that has both the label and the annotation stays as it is.
func (s RevisionSorter) Sort(ctx context.Context, key client.ObjectKey, annotations map[string]string) error {
	revision := &appsv1.ControllerRevision{}
	if err := s.APIReader.Get(ctx, key, revision); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("get ControllerRevision %s: %w", key, err))
	}
	mark := func(r *appsv1.ControllerRevision) {
		metav1.SetMetaDataLabel(&r.ObjectMeta, v1.CreatedByLabel, string(s.Owner.GetUID()))
		revisiondata.MarkSorted(r)
		for name, value := range annotations {
			metav1.SetMetaDataAnnotation(&r.ObjectMeta, name, value)
		}
	}
	if revisiondata.IsSorted(revision) && revision.Labels[v1.CreatedByLabel] != "" {
		return nil
	}
	raw := revision.Data.Raw //nolint:forbidigo // only the order of keys changes
	sorted, err := revisiondata.SortKeys(raw)
	if err != nil {
		return fmt.Errorf("decode the data of ControllerRevision %s: %w", key, err)
	}
	if bytes.Equal(sorted, raw) {
		marked := revision.DeepCopy()
		mark(marked)
		if err := s.Client.Patch(ctx, marked, client.MergeFrom(revision)); err != nil {
			return client.IgnoreNotFound(fmt.Errorf("annotate ControllerRevision %s: %w", key, err))
		}
		return nil
	}
	replacement := renamedRevision(revision, key.Name+revisionCopySuffix)
	mark(replacement)
	replacement.Data = runtime.RawExtension{Raw: sorted}
	if err := s.Client.Create(ctx, replacement); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create a copy of ControllerRevision %s: %w", key, err)
	}
	if err := Delete(ctx, s.Client, revision, Unchanged(revision)); err != nil {
		return err
	}
	return s.finish(ctx, key)
}

// finish creates a revision from its copy, if it does not exist, and deletes the copy.
func (s RevisionSorter) finish(ctx context.Context, key client.ObjectKey) error {
	kept := &appsv1.ControllerRevision{}
	if err := s.APIReader.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name + revisionCopySuffix},
		kept); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("get the copy of ControllerRevision %s: %w", key, err))
	}
	if err := s.Client.Create(ctx, renamedRevision(kept, key.Name)); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create ControllerRevision %s of its copy: %w", key, err)
	}
	return Delete(ctx, s.Client, kept)
}

// renamedRevision returns a revision to create under another name.
func renamedRevision(r *appsv1.ControllerRevision, name string) *appsv1.ControllerRevision {
	out := &appsv1.ControllerRevision{Data: *r.Data.DeepCopy(), Revision: r.Revision}
	out.Namespace, out.Name = r.Namespace, name
	out.Labels, out.Annotations, out.OwnerReferences = r.DeepCopy().Labels, r.DeepCopy().Annotations,
		r.DeepCopy().OwnerReferences
	return out
}
