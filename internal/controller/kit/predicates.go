// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// Objects passes the events of those objects that a function selects.
func Objects[T client.Object](selects func(T) bool) predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool {
		object, ok := o.(T)
		return ok && selects(object)
	})
}

// Updates passes those updates that a function selects, every creation and every deletion.
func Updates[T client.Object](selects func(before, after T) bool) predicate.Funcs {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(T)
		after, is := e.ObjectNew.(T)
		return ok && is && selects(before, after)
	}}
}

// ExceptCreations passes what other predicates do, but no creation. All objects are created when virt-controller
// starts.
func ExceptCreations(funcs predicate.Funcs) predicate.Funcs {
	funcs.CreateFunc = func(event.CreateEvent) bool { return false }
	return funcs
}

// ExceptDeletions passes what other predicates do, but no deletion.
func ExceptDeletions(funcs predicate.Funcs) predicate.Funcs {
	funcs.DeleteFunc = func(event.DeleteEvent) bool { return false }
	return funcs
}

// CreationsAndDeletions passes no updates.
var CreationsAndDeletions = Updates(func(client.Object, client.Object) bool { return false })

// Deletions passes nothing else.
var Deletions = ExceptCreations(CreationsAndDeletions)
