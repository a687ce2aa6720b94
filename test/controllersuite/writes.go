// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Writes is a client that logs the write requests made through it.
type Writes struct {
	client.WithWatch
	// Requests are like "patch VirtualMachineInstance/status".
	Requests []string
	// Fail, if set, is called before each write; the write returns its error.
	Fail func(request string) error
	// Blind, if set, makes objects invisible to reads, as a stale cache would.
	Blind func(key client.ObjectKey, object client.Object) bool
	// Stale, if set, is what reads of this object return, as a stale cache would.
	Stale client.Object
	// StaleList, if set, is what lists of its kind return, as a stale cache would.
	StaleList client.ObjectList

	mu sync.Mutex // reconcilers write from several goroutines
}

// NewWrites returns a client that logs writes. It writes with virt-controller's rights and reads with the test's:
// reconcilers read from a cache, which needs no right to get.
func NewWrites() *Writes {
	w := &Writes{}
	w.WithWatch = interceptor.NewClient(AsController, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			if w.Blind != nil && w.Blind(key, o) {
				return apierrors.NewNotFound(v1.GroupVersion.WithResource("hidden").GroupResource(), key.Name)
			}
			if w.Stale != nil && reflect.TypeOf(o) == reflect.TypeOf(w.Stale) && key == client.ObjectKeyFromObject(w.Stale) {
				reflect.ValueOf(o).Elem().Set(reflect.ValueOf(w.Stale.DeepCopyObject()).Elem())
				return nil
			}
			return reads(c, o).Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if w.StaleList != nil && reflect.TypeOf(list) == reflect.TypeOf(w.StaleList) {
				reflect.ValueOf(list).Elem().Set(reflect.ValueOf(w.StaleList.DeepCopyObject()).Elem())
				return nil
			}
			return listIndexed(ctx, reads(c, list), list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return w.write("create", o, "", func() error { return c.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return w.write("delete", o, "", func() error { return c.Delete(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return w.write("update", o, "", func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch,
			opts ...client.PatchOption) error {
			return w.write("patch", o, "", func() error { return c.Patch(ctx, o, p, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption) error {
			return w.write("update", o, "/"+sub, func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption,
		) error {
			return w.write("patch", o, "/"+sub, func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
	return w
}

// reads returns the client that reads an object. A manager's client reads unstructured objects from the API server.
func reads(live client.WithWatch, object runtime.Object) client.WithWatch {
	if _, ok := object.(runtime.Unstructured); ok {
		return live
	}
	return K8sClient
}

func (w *Writes) write(verb string, object client.Object, sub string, do func() error) error {
	gvk, err := w.GroupVersionKindFor(object)
	if err != nil {
		return err
	}
	request := fmt.Sprintf("%s %s%s", verb, gvk.Kind, sub)
	if err := w.note(request); err != nil {
		return err
	}
	return do()
}

func (w *Writes) note(request string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Requests = append(w.Requests, request)
	if w.Fail == nil {
		return nil
	}
	return w.Fail(request)
}

// Take returns the requests so far and clears them.
func (w *Writes) Take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	requests := w.Requests
	w.Requests = nil
	return requests
}

// TakeOnly is Take, and returns the requests that contain a text.
func (w *Writes) TakeOnly(text string) []string {
	return slices.DeleteFunc(w.Take(), func(request string) bool { return !strings.Contains(request, text) })
}

// ErrInjected is the error with which tests make requests fail.
var ErrInjected = errors.New("injected by the test")
