// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package optimistic patches objects with their resource version as the precondition: the API server refuses the patch
// of an object that has changed since it was read, with an error for which apierrors.IsConflict is true.
package optimistic

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// MergeFrom returns the JSON merge patch from an object, as it was read, to the changed copy that is given to Patch.
func MergeFrom(read client.Object) client.Patch {
	return client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{})
}

// Patch makes a change to a copy of an object, sends the patch, and returns the copy as the API server has it then. It
// sends the patch even if change does nothing. The object that it is given stays as it is. With an error the copy is
// not what the API server has.
func Patch[T client.Object](ctx context.Context, c client.Writer, read T, change func(T)) (T, error) {
	changed := read.DeepCopyObject().(T)
	change(changed)
	err := c.Patch(ctx, changed, MergeFrom(read))
	return changed, err
}

// Client returns a client that, for the kinds of the given objects, does not return a version from the cache that is
// older than what it wrote itself: Get fails with a conflict until the cache has received that write. A reconciliation
// of the older version would repeat what is done, and its writes would be refused. Creations, deletions and what other
// clients write do not count.
//
// Its user must reconcile an object again when the cache receives it, and read each object by Get that it writes, which
// removes the record of the write.
func Client(c client.Client, kinds ...client.Object) client.Client {
	w := &written{Client: c, versions: map[writtenKey]writtenVersion{}}
	for _, kind := range kinds {
		w.kinds = append(w.kinds, reflect.TypeOf(kind))
	}
	return w
}

// written is a client that remembers the versions that it has written and not read yet.
type written struct {
	client.Client
	kinds []reflect.Type

	mu       sync.Mutex
	versions map[writtenKey]writtenVersion
}

type writtenKey struct {
	kind reflect.Type
	types.NamespacedName
}

type writtenVersion struct {
	uid     types.UID
	version string
}

func (w *written) keyOf(object client.Object, name types.NamespacedName) (writtenKey, bool) {
	kind := reflect.TypeOf(object)
	for _, k := range w.kinds {
		if k == kind {
			return writtenKey{kind: kind, NamespacedName: name}, true
		}
	}
	return writtenKey{}, false
}

// Get implements client.Reader.
func (w *written) Get(
	ctx context.Context, name client.ObjectKey, object client.Object, options ...client.GetOption,
) error {
	err := w.Client.Get(ctx, name, object, options...)
	key, ok := w.keyOf(object, name)
	if !ok || err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.versions[key]
	if !ok {
		return err
	}
	if err == nil && last.uid == object.GetUID() && isOlder(object.GetResourceVersion(), last.version) {
		return apierrors.NewConflict(schema.GroupResource{Resource: fmt.Sprintf("%T", object)}, name.String(),
			fmt.Errorf("the cache has version %s, and %s was written", object.GetResourceVersion(), last.version))
	}
	delete(w.versions, key)
	return err
}

// isOlder reports whether a version comes before another one. Versions that cannot be compared do not.
func isOlder(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}

// record remembers the version of an object that was written.
func (w *written) record(object client.Object) {
	key, ok := w.keyOf(object, client.ObjectKeyFromObject(object))
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	version := object.GetResourceVersion()
	if last, ok := w.versions[key]; ok && last.uid == object.GetUID() && isOlder(version, last.version) {
		return
	}
	w.versions[key] = writtenVersion{uid: object.GetUID(), version: version}
}

// Update implements client.Writer.
func (w *written) Update(ctx context.Context, object client.Object, options ...client.UpdateOption) error {
	err := w.Client.Update(ctx, object, options...)
	if err == nil {
		w.record(object)
	}
	return err
}

// Patch implements client.Writer.
func (w *written) Patch(
	ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption,
) error {
	err := w.Client.Patch(ctx, object, patch, options...)
	if err == nil {
		w.record(object)
	}
	return err
}

// Status implements client.StatusClient.
func (w *written) Status() client.SubResourceWriter {
	return writtenStatus{SubResourceWriter: w.Client.Status(), written: w}
}

type writtenStatus struct {
	client.SubResourceWriter
	written *written
}

// Patch implements client.SubResourceWriter.
func (s writtenStatus) Patch(
	ctx context.Context, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption,
) error {
	err := s.SubResourceWriter.Patch(ctx, object, patch, options...)
	if err == nil {
		s.written.record(object)
	}
	return err
}
