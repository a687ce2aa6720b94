// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vireo-project/vireo/internal/controller/kit"
)

func TestRead(t *testing.T) {
	key := client.ObjectKey{Namespace: "a", Name: "b"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	empty, full := fake.NewClientBuilder().Build(), fake.NewClientBuilder().WithObjects(pod).Build()
	refused := errors.New("refused")
	failing := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return refused
		},
	})
	for name, tc := range map[string]struct {
		readers []client.Reader
		found   bool
		err     error
	}{
		"the cache has it":        {[]client.Reader{full, failing}, true, nil},
		"the cache is behind":     {[]client.Reader{empty, full}, true, nil},
		"it does not exist":       {[]client.Reader{empty, empty}, false, nil},
		"the cache cannot say it": {[]client.Reader{failing, full}, false, refused},
		"the API server is away":  {[]client.Reader{empty, failing}, false, refused},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := kit.Read(t.Context(), key, &corev1.Pod{}, tc.readers...)
			if (got != nil) != tc.found || !errors.Is(err, tc.err) {
				t.Errorf("got %v, %v", got, err)
			}
			if got != nil && got.Name != key.Name {
				t.Errorf("got %s", got.Name)
			}
		})
	}
}

func TestRun(t *testing.T) {
	key := client.ObjectKey{Namespace: "a", Name: "b"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	failed, refused := errors.New("failed"), errors.New("refused")
	for name, tc := range map[string]struct {
		cache client.Reader
		runs  bool
		err   error
	}{
		"an object":              {fake.NewClientBuilder().WithObjects(pod).Build(), true, failed},
		"an object that is gone": {fake.NewClientBuilder().Build(), false, nil},
		"the cache fails": {interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return refused
			},
		}), false, refused},
	} {
		t.Run(name, func(t *testing.T) {
			runs := false
			var object *corev1.Pod
			err := kit.Run(t.Context(), tc.cache, key, &object, func(context.Context) error {
				runs = object != nil && object.Name == key.Name
				return failed
			})
			if runs != tc.runs || !errors.Is(err, tc.err) {
				t.Errorf("reconciled: %t, %v", runs, err)
			}
		})
	}
}

func TestClaims(t *testing.T) {
	claim := func(namespace, name string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	cache := fake.NewClientBuilder().WithObjects(claim("a", "x"), claim("a", "y"), claim("b", "x"),
		claim("b", "z")).Build()
	got, err := kit.Claims(t.Context(), cache, "a")
	if err != nil || len(got) != 2 {
		t.Fatalf("got %v, %v", got, err)
	}
	for _, name := range []string{"x", "y"} {
		if c := got[name]; c == nil || c.Namespace != "a" || c.Name != name {
			t.Errorf("got %v for %s", c, name)
		}
	}
}
