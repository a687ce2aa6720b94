// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"fmt"
	"net/http"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vireo-project/vireo/internal/quantity"
)

// kinds are the types that a decoder may choose for an object, by the name of its kind: the decoder follows the kind
// that an object says it has, and not the one that a webhook expects.
type kinds map[string]sets.Set[reflect.Type]

func newKinds(scheme *runtime.Scheme) kinds {
	all := kinds{}
	for gvk, t := range scheme.AllKnownTypes() {
		if all[gvk.Kind] == nil {
			all[gvk.Kind] = sets.New[reflect.Type]()
		}
		all[gvk.Kind].Insert(t)
	}
	return all
}

// bounded rejects objects with quantities that take hours to decode. The schemas reject them too, but the API server
// validates an object after it has called mutating webhooks, and no schema applies to what others send.
func (k kinds) bounded(next admission.Handler) admission.Handler {
	return admission.HandlerFunc(func(ctx context.Context, request admission.Request) admission.Response {
		for _, object := range []runtime.RawExtension{request.Object, request.OldObject} {
			if err := k.check(object.Raw); err != nil {
				return admission.Errored(http.StatusBadRequest, err)
			}
		}
		return next.Handle(ctx, request)
	})
}

func (k kinds) check(raw []byte) error {
	if len(raw) == 0 {
		return nil
	}
	gvk, err := json.DefaultMetaFactory.Interpret(raw)
	if err != nil {
		return fmt.Errorf("cannot read the kind of the object: %w", err)
	}
	types := k[gvk.Kind]
	if len(types) == 0 {
		return fmt.Errorf("objects of the kind %q are not admitted here", gvk.Kind)
	}
	for t := range types {
		if err := quantity.Check(raw, reflect.Zero(t).Interface()); err != nil {
			return err
		}
	}
	return nil
}
