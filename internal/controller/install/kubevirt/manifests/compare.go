// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// contains reports whether live has every field of want with its value. Fields that the server added are ignored,
// and so is a nil or empty value of want that live lacks. A list must have the same length.
func contains(live, want any) bool {
	switch w := want.(type) {
	case map[string]any:
		l, ok := live.(map[string]any)
		if !ok {
			return len(w) == 0 && live == nil
		}
		for k, v := range w {
			if !contains(l[k], v) {
				return false
			}
		}
		return true
	case []any:
		l, ok := live.([]any)
		if !ok || len(l) != len(w) {
			return len(w) == 0 && live == nil
		}
		for i := range w {
			if !contains(l[i], w[i]) {
				return false
			}
		}
		return true
	case nil:
		return true
	}
	if live == nil {
		return reflect.ValueOf(want).IsZero()
	}
	return reflect.DeepEqual(live, want)
}

// itemsOf returns copies of the objects of a list, with their kinds set.
func itemsOf(list client.ObjectList, scheme *runtime.Scheme) ([]client.Object, error) {
	var out []client.Object
	err := meta.EachListItem(list, func(item runtime.Object) error {
		// A copy, because the kind is set and the list may belong to a cache.
		o, ok := item.DeepCopyObject().(client.Object)
		if !ok {
			return fmt.Errorf("%T is not an object", item)
		}
		gvk, err := apiutil.GVKForObject(o, scheme)
		if err != nil {
			return err
		}
		o.GetObjectKind().SetGroupVersionKind(gvk)
		out = append(out, o)
		return nil
	})
	return out, err
}

func uidOf(o client.Object) *types.UID {
	uid := o.GetUID()
	return &uid
}
