// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Read reads an object from the first of the readers that has it, such as the cache, which may be stale, and then the
// API server. It returns nil if none has it. The object is overwritten.
func Read[T client.Object](ctx context.Context, key client.ObjectKey, object T, readers ...client.Reader) (T, error) {
	var none T
	for _, from := range readers {
		err := from.Get(ctx, key, object)
		switch {
		case err == nil:
			return object, nil
		case !apierrors.IsNotFound(err):
			return none, fmt.Errorf("get %s %s: %w", kindOf(object), key, err)
		}
	}
	return none, nil
}

// Run reads the object of a request from the cache and reconciles it. An object that is gone is not reconciled.
func Run[T any, P interface {
	*T
	client.Object
}](
	ctx context.Context, cache client.Reader, key client.ObjectKey, object *P, reconcile func(context.Context) error,
) (err error) {
	if *object, err = Read(ctx, key, P(new(T)), cache); err != nil || *object == nil {
		return err
	}
	return reconcile(ctx)
}

// Now returns the time of a clock, or of the system's if the clock is nil.
func Now(c clock.PassiveClock) time.Time {
	if c == nil {
		c = clock.RealClock{}
	}
	return c.Now()
}
