// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clientcompat

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"kubevirt.io/client-go/kubecli"
)

// storageClient is KubeVirt's client of a kind of storage.
type storageClient[T metav1.Object, L runtime.Object] interface {
	resource[T, L]
	UpdateStatus(context.Context, T, metav1.UpdateOptions) (T, error)
	DeleteCollection(context.Context, metav1.DeleteOptions, metav1.ListOptions) error
}

// refusal is a change of a valid object after which it cannot be created.
type refusal[T any] struct {
	what    string
	change  func(T)
	code    int
	message string
}

// storageKind is a kind of storage whose status only the components write.
type storageKind[T metav1.Object, L runtime.Object] struct {
	// resource is its name in errors.
	resource string
	client   func(kubecli.KubevirtClient) storageClient[T, L]
	// object returns a valid object with all fields that a user may set.
	object func(name string) T
	// spec and status return pointers to these fields.
	spec, status func(T) any
	refused      []refusal[T]
	// again, if not nil, changes an object so that it can be created beside one from the same function.
	again func(T)
	// change changes the spec, which is refused with the message immutable. Nil if changes are accepted.
	change    func(T)
	immutable string
}

func (k storageKind[T, L]) test(t *testing.T) {
	t.Run("all verbs", func(t *testing.T) { testKind(t, k.client(kubevirt), k.object("kind")) })
	t.Run("status", k.testStatus)
	t.Run("errors", k.testErrors)
	for _, refused := range k.refused {
		t.Run(refused.what, func(t *testing.T) {
			of := k.object("refused")
			refused.change(of)
			_, err := k.client(kubevirt).Create(t.Context(), of, metav1.CreateOptions{})
			expectCode(t, "create", err, refused.code, refused.message)
		})
	}
}

// testStatus expects that only the components write the status of an object, and that nothing of it is lost.
func (k storageKind[T, L]) testStatus(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	user, controller := k.client(kubevirt), k.client(component)
	watched, err := user.Watch(ctx, metav1.ListOptions{LabelSelector: "test=status"})
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	defer watched.Stop()
	of, err := user.Create(ctx, k.object("status"), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	expectEvent(t, watched, watch.Added, of.GetUID())
	expectSameJSON(t, "the spec", k.spec(of), k.spec(k.object("status")))
	none := toJSON(t, k.status(of))

	fill(reflect.ValueOf(k.status(of)).Elem())
	_, err = user.UpdateStatus(ctx, of, metav1.UpdateOptions{})
	expectCode(t, "update the status as a user", err, http.StatusForbidden, "only the components write the status of ")
	updated, err := user.Update(ctx, of, metav1.UpdateOptions{})
	if err != nil {
		t.Fatalf("update: %v", err)
	}
	if got := toJSON(t, k.status(updated)); got != none {
		t.Errorf("the status after an update of the object is %s", got)
	}
	of.SetResourceVersion(updated.GetResourceVersion())
	if _, err := controller.UpdateStatus(ctx, of, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("update the status as a component: %v", err)
	}
	expectEvent(t, watched, watch.Modified, of.GetUID())
	got, err := user.Get(ctx, "status", metav1.GetOptions{})
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	expectSameJSON(t, "the status", k.status(got), k.status(of))
	expectSameJSON(t, "the spec after that", k.spec(got), k.spec(of))
	expectNone(t, "delete", user.Delete(ctx, "status", metav1.DeleteOptions{}))
}

func (k storageKind[T, L]) testErrors(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	client, missing := k.client(kubevirt), k.resource+` "none" not found`
	_, err := client.Get(ctx, "none", metav1.GetOptions{})
	expectCode(t, "get nothing", err, http.StatusNotFound, missing)
	expectCode(t, "delete nothing", client.Delete(ctx, "none", metav1.DeleteOptions{}), http.StatusNotFound, missing)

	of, err := client.Create(ctx, k.object("errors"), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	second := k.object("errors")
	if k.again != nil {
		k.again(second)
	}
	_, err = client.Create(ctx, second, metav1.CreateOptions{})
	expectCode(t, "create it again", err, http.StatusConflict, k.resource+` "errors" already exists`)
	of.SetAnnotations(map[string]string{"changed": "once"})
	latest, err := client.Update(ctx, of, metav1.UpdateOptions{})
	if err != nil {
		t.Fatalf("update: %v", err)
	}
	of.SetAnnotations(map[string]string{"changed": "twice"})
	_, err = client.Update(ctx, of, metav1.UpdateOptions{})
	expectCode(t, "update an old version", err, http.StatusConflict, "the object has been modified")
	if k.change != nil {
		k.change(latest)
		_, err = client.Update(ctx, latest, metav1.UpdateOptions{})
		expectCode(t, "change the spec", err, unprocessable, k.immutable)
	}

	only := metav1.ListOptions{LabelSelector: "test=errors"}
	expectNone(t, "delete the collection", client.DeleteCollection(ctx, metav1.DeleteOptions{}, only))
	list, err := client.List(ctx, only)
	if err != nil || meta.LenList(list) != 0 {
		t.Errorf("list after that: %d objects, %v", meta.LenList(list), err)
	}
}

// fill sets every field of a value, and so finds fields that our schemas do not have: the API server drops those.
func fill(v reflect.Value) {
	now := metav1.Unix(1_700_000_000, 0)
	switch of := v.Addr().Interface().(type) {
	case *metav1.Time:
		*of = now
		return
	case *corev1.ConditionStatus:
		*of = corev1.ConditionTrue
		return
	case *metav1.Condition:
		*of = metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Ready", Message: "ready",
			LastTransitionTime: now, ObservedGeneration: 1}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.String:
		v.SetString("filled")
	case reflect.Bool:
		v.SetBool(true)
	default:
		panic("no value for " + v.Type().String())
	}
}

func toJSON(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func expectSameJSON(t *testing.T, what string, got, want any) {
	t.Helper()
	if got, want := toJSON(t, got), toJSON(t, want); got != want {
		t.Errorf("%s is\n%s, want\n%s", what, got, want)
	}
}

// expectEventually repeats a request until it fails in a certain way.
func expectEventually(t *testing.T, request func() error, code int, message string) {
	t.Helper()
	for deadline := time.Now().Add(timeout); ; time.Sleep(100 * time.Millisecond) {
		err := request()
		if isError(err, code, message) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %v, want %d %q", err, code, message)
		}
	}
}
