// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
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
			got, err := Read(t.Context(), key, &corev1.Pod{}, tc.readers...)
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
			err := Run(t.Context(), tc.cache, key, &object, func(context.Context) error {
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
	got, err := Claims(t.Context(), cache, "a")
	if err != nil || len(got) != 2 {
		t.Fatalf("got %v, %v", got, err)
	}
	for _, name := range []string{"x", "y"} {
		if c := got[name]; c == nil || c.Namespace != "a" || c.Name != name {
			t.Errorf("got %v for %s", c, name)
		}
	}
}

// pagedPods is an API server with Pods, which lists at most as many as are requested. It counts the requests.
type pagedPods struct {
	client.Reader
	pods       []corev1.Pod
	lists, got int
}

func (p *pagedPods) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	p.lists++
	requested := (&client.ListOptions{}).ApplyOptions(options)
	metadata, ok := list.(*metav1.PartialObjectMetadataList)
	if !ok || requested.Limit == 0 {
		return fmt.Errorf("%T without metadata only or without a limit", list)
	}
	first, _ := strconv.Atoi(requested.Continue)
	last := min(first+int(requested.Limit), len(p.pods))
	for i := range p.pods[first:last] {
		metadata.Items = append(metadata.Items, metav1.PartialObjectMetadata{ObjectMeta: p.pods[first+i].ObjectMeta})
	}
	if last < len(p.pods) {
		metadata.Continue = strconv.Itoa(last)
	}
	return nil
}

func (p *pagedPods) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	p.got++
	i := slices.IndexFunc(p.pods, func(pod corev1.Pod) bool { return pod.Name == key.Name })
	if i < 0 || p.pods[i].DeletionTimestamp != nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
	}
	*object.(*corev1.Pod) = p.pods[i]
	return nil
}

func TestCurrent(t *testing.T) {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	pod := func(i int, version string) corev1.Pod {
		name := strconv.Itoa(i)
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: version},
			Spec:       corev1.PodSpec{NodeName: version},
		}
	}
	live, cached := &pagedPods{}, []corev1.Pod{pod(-1, "gone")}
	for i := range 2*PageSize + 1 {
		live.pods = append(live.pods, pod(i, "1"))
		cached = append(cached, pod(i, "1"))
	}
	live.pods[3], live.pods[4] = pod(3, "2"), pod(4, "2") // changed
	live.pods[5].UID = "another"
	live.pods[6], live.pods[6].DeletionTimestamp = pod(6, "2"), &metav1.Time{} // gone when it is read
	current, err := Current(t.Context(), live, kind, "ns", cached,
		func(o metav1.Object) bool { return o.GetName() != "4" })
	if err != nil {
		t.Fatal(err)
	}
	if want := len(live.pods) - 2; len(current) != want || live.lists != 3 || live.got != 3 {
		t.Errorf("%d objects, want %d; %d lists, want 3; %d read, want 3", len(current), want, live.lists, live.got)
	}
	for i := range current {
		switch p := &current[i]; {
		case p.Name == "4" || p.Name == "6" || p.Name == "-1":
			t.Errorf("%s is not current", p.Name)
		case (p.Name == "3") != (p.Spec.NodeName == "2"), p.Name == "5" && p.UID != "another":
			t.Errorf("%s is %s", p.Name, p.Spec.NodeName)
		}
	}
}

func TestAbandonedVMs(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(v1.AddToScheme(scheme), v1beta1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	const index = "lock"
	locked := func(namespace, name, by string) *v1.VirtualMachine {
		vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		vm.Status.SnapshotInProgress = &by
		return vm
	}
	snapshotOf := func(vm string) *v1beta1.VirtualMachineSnapshot {
		out := &v1beta1.VirtualMachineSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "snap"}}
		out.Spec.Source.Name = vm
		return out
	}
	with := func(objects ...client.Object) client.Client {
		objects = append(objects, locked("a", "vm", "snap"), locked("a", "old", "snap"),
			locked("a", "other", "x"), locked("b", "vm", "snap"))
		return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
			WithIndex(&v1.VirtualMachine{}, index, func(o client.Object) []string {
				return []string{*o.(*v1.VirtualMachine).Status.SnapshotInProgress}
			}).Build()
	}
	for name, tc := range map[string]struct {
		cached, live client.Client
		want         string
	}{
		"the snapshot is of one of them":    {with(snapshotOf("vm")), with(snapshotOf("vm")), "old"},
		"the snapshot is gone":              {with(), with(), "old vm"},
		"the cache does not have it yet":    {with(), with(snapshotOf("vm")), "old"},
		"the cache still has another one":   {with(snapshotOf("old")), with(snapshotOf("vm")), ""},
		"the snapshot is of an unlocked VM": {with(snapshotOf("new")), with(snapshotOf("new")), "old vm"},
	} {
		vms, err := AbandonedVMs(t.Context(), tc.cached, tc.live, index, client.ObjectKey{Namespace: "a", Name: "snap"},
			func(s *v1beta1.VirtualMachineSnapshot) string { return s.Spec.Source.Name })
		var got []string
		for i := range vms {
			got = append(got, vms[i].Name)
		}
		if strings.Join(got, " ") != tc.want || err != nil {
			t.Errorf("%s: got %q, want %q: %v", name, got, tc.want, err)
		}
	}
}
