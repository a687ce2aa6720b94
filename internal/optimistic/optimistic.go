// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package optimistic patches objects with their resource version as the precondition: the API server refuses the patch of an
// object that has changed since it was read, with an error for which apierrors.IsConflict is true.
package optimistic

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// MergeFrom returns the JSON merge patch from an object, as it was read, to the changed copy that is given to Patch.
func MergeFrom(read client.Object) client.Patch {
	return client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{})
}

// Patch makes a change to a copy of an object, sends the patch, and returns the copy as the API server has it then. It sends
// the patch even if change does nothing. The object that it is given stays as it is. With an error the copy is not what the
// API server has.
func Patch[T client.Object](ctx context.Context, c client.Writer, read T, change func(T)) (T, error) {
	changed := read.DeepCopyObject().(T)
	change(changed)
	err := c.Patch(ctx, changed, MergeFrom(read))
	return changed, err
}
