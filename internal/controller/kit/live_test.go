// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

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
