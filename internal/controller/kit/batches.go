// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// CreateInBatches creates a number of objects like InBatches, and returns those that were made, also beside an error.
// It is no error if nothing can be created in the namespace any more.
func CreateInBatches[T any](count int, create func() (*T, error)) ([]*T, error) {
	results := make([]*T, count)
	err := InBatches(count, func(i int) (err error) {
		results[i], err = create()
		return err
	})
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		err = nil
	}
	return slices.DeleteFunc(results, func(made *T) bool { return made == nil }), err
}

// InBatches calls do count times, concurrently in batches that double in size. After a batch with errors it stops and
// returns the first error; the others most likely have the same cause.
func InBatches(count int, do func(i int) error) error {
	for done, size := 0, 1; done < count; done, size = done+size, 2*size {
		size = min(size, count-done)
		errs := make([]error, size)
		var batch sync.WaitGroup
		for i := range size {
			batch.Go(func() { errs[i] = do(done + i) })
		}
		batch.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
	}
	return nil
}
