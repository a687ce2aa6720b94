// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

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
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/instancetype/reference"
)

// The data of a ControllerRevision is immutable byte by byte. When the API server applies a strategic merge patch, as the
// garbage collector sends to orphan an object, it encodes the data anew with sorted keys. If the stored keys are not sorted,
// every such patch fails.
// See docs/adr/0063.
const (
	// dataFormAnnotation is the form of a revision's data, so that the data need not be read.
	dataFormAnnotation = "kubevirt.io/data-form"
	// dataFormSorted is the form of json.Marshal for maps.
	dataFormSorted = "sorted"
	// copySuffix is the suffix of the name of the copy of a revision that is being replaced.
	copySuffix = "-copy"
)

// sortRevisions replaces revisions whose keys are not sorted by ones of the same name and content. The old one must be
// deleted first, so a copy stores the content in between: nothing is lost if virt-controller stops.
func sortRevisions(ctx context.Context, s *Scope) error {
	revisions, err := listRevisions(ctx, s)
	if err != nil {
		return err
	}
	var failed error
	for i := range revisions {
		switch name, isCopy := strings.CutSuffix(revisions[i].Name, copySuffix); {
		case isCopy:
			failed = errors.Join(failed, s.finishReplacement(ctx, client.ObjectKey{Namespace: revisions[i].Namespace, Name: name}))
		case revisions[i].Annotations[dataFormAnnotation] != dataFormSorted:
			failed = errors.Join(failed, s.sortRevision(ctx, client.ObjectKeyFromObject(&revisions[i])))
		}
	}
	return failed
}

// sortRevision replaces a revision if its keys are not sorted. In any case it sets the label by which the cache selects revisions, and the
// annotation of sorted keys.
func (s *Scope) sortRevision(ctx context.Context, key client.ObjectKey) error {
	revision := &appsv1.ControllerRevision{}
	if err := s.APIReader.Get(ctx, key, revision); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("get ControllerRevision %s: %w", key, err))
	}
	mark := func(r *appsv1.ControllerRevision) {
		metav1.SetMetaDataLabel(&r.ObjectMeta, v1.CreatedByLabel, string(s.VM.UID))
		metav1.SetMetaDataAnnotation(&r.ObjectMeta, dataFormAnnotation, dataFormSorted)
	}
	if revision.Annotations[dataFormAnnotation] == dataFormSorted && revision.Labels[v1.CreatedByLabel] != "" {
		return nil
	}
	sorted, err := reference.SortKeys(revision.Data.Raw)
	if err != nil {
		return fmt.Errorf("decode the data of ControllerRevision %s: %w", key, err)
	}
	if bytes.Equal(sorted, revision.Data.Raw) {
		marked := revision.DeepCopy()
		mark(marked)
		if err := s.Client.Patch(ctx, marked, client.MergeFrom(revision)); err != nil {
			return client.IgnoreNotFound(fmt.Errorf("annotate ControllerRevision %s: %w", key, err))
		}
		return nil
	}
	replacement := renamed(revision, key.Name+copySuffix)
	mark(replacement)
	replacement.Data = runtime.RawExtension{Raw: sorted}
	if err := s.Client.Create(ctx, replacement); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create a copy of ControllerRevision %s: %w", key, err)
	}
	err = s.Client.Delete(ctx, revision, client.Preconditions{UID: ptr.To(revision.UID), ResourceVersion: ptr.To(revision.ResourceVersion)})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete ControllerRevision %s, which is replaced by a copy with sorted keys: %w", key, err)
	}
	return s.finishReplacement(ctx, key)
}

// finishReplacement creates a revision from its copy, if it does not exist, and deletes the copy.
func (s *Scope) finishReplacement(ctx context.Context, key client.ObjectKey) error {
	kept := &appsv1.ControllerRevision{}
	if err := s.APIReader.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name + copySuffix}, kept); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("get the copy of ControllerRevision %s: %w", key, err))
	}
	if err := s.Client.Create(ctx, renamed(kept, key.Name)); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create ControllerRevision %s of its copy: %w", key, err)
	}
	if err := s.Client.Delete(ctx, kept, client.Preconditions{UID: ptr.To(kept.UID)}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete the copy of ControllerRevision %s: %w", key, err)
	}
	return nil
}

// renamed returns a revision to create under another name.
func renamed(r *appsv1.ControllerRevision, name string) *appsv1.ControllerRevision {
	out := &appsv1.ControllerRevision{Data: *r.Data.DeepCopy(), Revision: r.Revision}
	out.Namespace, out.Name = r.Namespace, name
	out.Labels, out.Annotations, out.OwnerReferences = r.DeepCopy().Labels, r.DeepCopy().Annotations, r.DeepCopy().OwnerReferences
	return out
}
