// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/optimistic"
)

// WriteStatus makes a change of the status of an object. If it changes something, it is written if the object is still
// at the version that was read, the object becomes the written one, and events are recorded: those of a write that
// fails would be recorded again when it is repeated. An event function gets the object as it was.
//
// The status of a VMI has several writers, and vmistatus.Patch is the only one of its patches.
func WriteStatus[T client.Object](
	ctx context.Context, c client.StatusClient, object *T, change func(T), events ...func(before T),
) error {
	before := *object
	after, changed := changedBy(before, change)
	if !changed {
		return nil
	}
	if err := c.Status().Patch(ctx, after, optimistic.MergeFrom(before)); err != nil {
		return fmt.Errorf("patch status of %s: %w", nameOf(before), err)
	}
	*object = after
	for _, record := range events {
		record(before)
	}
	return nil
}

// Patch makes a change of an object's metadata or spec. If it changes something, it is written if the object is still
// at the version that was read, and the object becomes the written one. AddFinalizer and RemoveFinalizer change
// finalizers.
func Patch[T client.Object](ctx context.Context, c client.Writer, object *T, change func(T)) error {
	after, changed := changedBy(*object, change)
	if !changed {
		return nil
	}
	if err := c.Patch(ctx, after, optimistic.MergeFrom(*object)); err != nil {
		return fmt.Errorf("patch metadata of %s: %w", nameOf(*object), err)
	}
	*object = after
	return nil
}

// AddFinalizer adds a finalizer to an object that does not have it.
func AddFinalizer[T client.Object](ctx context.Context, c client.Writer, object *T, finalizer string) error {
	return Patch(ctx, c, object, func(o T) { controllerutil.AddFinalizer(o, finalizer) })
}

// RemoveFinalizer removes finalizers from an object that has one of them. It is no error if the object is gone.
func RemoveFinalizer[T client.Object](ctx context.Context, c client.Writer, object *T, finalizers ...string) error {
	return client.IgnoreNotFound(Patch(ctx, c, object, func(o T) {
		for _, finalizer := range finalizers {
			controllerutil.RemoveFinalizer(o, finalizer)
		}
	}))
}

// Delete deletes an object if it is still the one that was read, or, with the option Unchanged, if it has not changed
// either. It is no error if the object is gone.
func Delete(ctx context.Context, c client.Writer, object client.Object, options ...client.DeleteOption) error {
	same := client.Preconditions{UID: ptr.To(object.GetUID())}
	err := c.Delete(ctx, object, append([]client.DeleteOption{same}, options...)...)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s: %w", nameOf(object), err)
	}
	return nil
}

// Unchanged is an option of deletions: the object is deleted only if it is at the version that was read.
func Unchanged(object client.Object) client.Preconditions {
	return client.Preconditions{UID: ptr.To(object.GetUID()), ResourceVersion: ptr.To(object.GetResourceVersion())}
}

// changedBy returns a copy of an object with a change, and whether it differs.
func changedBy[T client.Object](object T, change func(T)) (T, bool) {
	after := object.DeepCopyObject().(T)
	change(after)
	return after, !equality.Semantic.DeepEqual(object, after)
}

// nameOf returns kind, namespace and name of an object.
func nameOf(object client.Object) string {
	return kindOf(object) + " " + client.ObjectKeyFromObject(object).String()
}

// kindOf returns the kind of an object by its type: objects from a cache do not have it as a value.
func kindOf(object client.Object) string { return reflect.TypeOf(object).Elem().Name() }

// Failure is why an object is not as it should be: a condition, and the events that are recorded once the status shows
// it.
type Failure struct {
	// Reason and Message are those of the condition.
	Reason, Message string
	// Events may differ from the condition. There may be none.
	Events []FailureEvent
}

// FailureEvent is an event about a failure.
type FailureEvent struct{ Reason, Action, Note string }

// SetFailure makes a condition show a failure, or removes it if there is none.
func SetFailure[C conditions.Condition[T], T ~string](list *[]C, kind T, failure *Failure, now time.Time) {
	if failure == nil {
		conditions.Remove(list, kind)
		return
	}
	conditions.SetTrue(list, kind, failure.Reason, failure.Message, metav1.NewTime(now))
}

// RecordFailure records the events of a failure, unless the conditions that the status had before show it.
func RecordFailure[C conditions.Condition[T], T ~string](
	recorder events.EventRecorder, object runtime.Object, before []C, kind T, failure *Failure,
) {
	if failure == nil || conditions.Find(before, kind) != nil && conditions.Message(before, kind) == failure.Message {
		return
	}
	for _, e := range failure.Events {
		recorder.Eventf(object, nil, corev1.EventTypeWarning, e.Reason, e.Action, "%s", e.Note)
	}
}
