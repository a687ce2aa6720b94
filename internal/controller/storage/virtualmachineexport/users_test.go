// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineexport

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/controller/storage/claimusers"
	"github.com/vireo-project/vireo/internal/decide/export"
	"github.com/vireo-project/vireo/test/builder"
)

// podPages are the Pods of an API server that returns them in pages, and the requests that it received.
type podPages struct {
	client.Reader
	pages [][]corev1.Pod
	asked []string
}

func (p *podPages) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	options := (&client.ListOptions{}).ApplyOptions(opts)
	p.asked = append(p.asked,
		fmt.Sprintf("%s %d %s %s", options.Namespace, options.Limit, options.Continue, options.FieldSelector))
	pods, ok := list.(*corev1.PodList)
	if !ok {
		return fmt.Errorf("a list of %T", list)
	}
	page := 0
	if options.Continue != "" {
		var err error
		if page, err = strconv.Atoi(options.Continue); err != nil {
			return err
		}
	}
	pods.Items = p.pages[page]
	if page+1 < len(p.pages) {
		pods.Continue = strconv.Itoa(page + 1)
	}
	return nil
}

func podWith(name string, claims ...string) corev1.Pod {
	return builder.MakePodWithClaims("a", name, claims...)
}

// A namespace may have more Pods than fit into memory, and each of them may be large.
func TestUsersAreReadInPages(t *testing.T) {
	exporter := podWith("exporter", "data")
	exporter.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(exportIn("a", "other", "", "PersistentVolumeClaim", "data"),
			exportv1.GroupVersion.WithKind("VirtualMachineExport")),
	}
	launcher := podWith("virt-launcher-x", "more")
	pages := [][]corev1.Pod{{podWith("unrelated", "unrelated"), exporter}, {}, {podWith("user", "unrelated", "data")},
		{podWith("another", "more")}}
	const first, second, third = "a 50  SELECTOR", "a 50 1 SELECTOR", "a 50 2 SELECTOR"
	for name, tc := range map[string]struct {
		launchers []client.Object
		change    func(*export.Observed)
		used      string
		asked     []string
	}{
		"until one is found": {nil, func(*export.Observed) {}, "data", []string{first, second, third}},
		"of another claim": {nil, func(w *export.Observed) {
			delete(w.Claims, "data")
			delete(w.Claims, "more")
			w.Export.Spec.Source.Name = "unused"
		}, "", []string{first, second, third, "a 50 3 SELECTOR"}},
		"a claim that is not there":       {nil, func(w *export.Observed) { delete(w.Claims, "data") }, "", nil},
		"a claim that is not filled":      {nil, func(w *export.Observed) { w.Unfilled["data"] = "" }, "", nil},
		"of a launcher in the cache":      {[]client.Object{&launcher}, func(w *export.Observed) { w.Export.Spec.Source.Name = "more" }, "more", nil},
		"a VM that runs":                  {nil, func(w *export.Observed) { ofVM(w); w.Running = true }, "", nil},
		"a VM whose volumes are not full": {nil, func(w *export.Observed) { ofVM(w); w.Unfilled["data"] = "" }, "", nil},
		"a VM":                            {nil, ofVM, "data", []string{first, second, third}},
	} {
		t.Run(name, func(t *testing.T) {
			api := &podPages{pages: pages}
			cached := fake.NewClientBuilder().WithObjects(tc.launchers...).
				WithIndex(&corev1.Pod{}, claimusers.Index, func(o client.Object) []string {
					pod, _ := o.(*corev1.Pod)
					return claimusers.ClaimsOf(pod)
				}).Build()
			w := &export.Observed{
				Export: exportIn("a", "export", "", "PersistentVolumeClaim", "data"), Unfilled: map[string]string{},
				Used: map[string]bool{}, Claims: map[string]*corev1.PersistentVolumeClaim{},
			}
			for _, claim := range []string{"data", "more", "unused"} {
				w.Claims[claim] = builder.MakePVC(claim).Namespace("a").Bound("1Gi").Obj()
			}
			tc.change(w)
			s := &scope{Reconciler: &Reconciler{Client: cached, APIReader: api}, export: w.Export}
			if err := s.readUsers(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			var used []string
			for claim := range w.Used {
				used = append(used, claim)
			}
			for i := range tc.asked {
				tc.asked[i] = strings.ReplaceAll(tc.asked[i], "SELECTOR",
					"spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed")
			}
			if strings.Join(used, " ") != tc.used || !slices.Equal(api.asked, tc.asked) {
				t.Errorf("got %v, asked for %q; want %s, %q", used, api.asked, tc.used, tc.asked)
			}
		})
	}
}

// ofVM makes an export that of a VM.
func ofVM(w *export.Observed) {
	w.Export = exportIn("a", "export", "kubevirt.io", "VirtualMachine", "vm")
	w.VM = builder.MakeVM("vm").Namespace("a").Template(
		builder.MakeVMI("vm").PVC("root", "data").PVC("second", "unused")).Obj()
}

// Before the Pod is created, what was found for a poll is not enough.
func TestUsersAreReadAgainBeforeThePodIsCreated(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	api := &podPages{pages: [][]corev1.Pod{{podWith("user", "data")}}}
	cached := fake.NewClientBuilder().WithIndex(&corev1.Pod{}, claimusers.Index,
		func(client.Object) []string { return nil }).Build()
	r := &Reconciler{APIReader: api, Client: cached}
	object := exportIn("a", "export", "", "PersistentVolumeClaim", "data")
	object.CreationTimestamp = metav1.NewTime(now)
	next := func(after time.Duration) (*export.Step, error) {
		w := &export.Observed{
			Now: now.Add(after), Export: object, Unfilled: map[string]string{}, Used: map[string]bool{},
			Claims: map[string]*corev1.PersistentVolumeClaim{"data": builder.MakePVC("data").Namespace("a").Bound("1Gi").Obj()},
			Config: export.Config{Image: "image", CA: "ca", CAEnd: now.Add(time.Hour)},
		}
		s := &scope{Reconciler: r, export: object, now: w.Now}
		if err := s.readUsers(t.Context(), w); err != nil {
			return nil, err
		}
		return s.next(t.Context(), w)
	}
	for _, c := range []struct {
		what    string
		after   time.Duration
		pod     corev1.Pod
		creates bool
		lists   int
	}{
		{"one that uses it", 0, podWith("user", "data"), false, 1},
		{"it has gone a moment ago", time.Second, podWith("other"), false, 0},
		{"it has gone", 5 * time.Second, podWith("other"), true, 1},
		{"known a moment ago", 5500 * time.Millisecond, podWith("user", "data"), true, 0},
		{"another one has started", 7 * time.Second, podWith("user", "data"), false, 1},
	} {
		api.pages, api.asked = [][]corev1.Pod{{c.pod}}, nil
		step, err := next(c.after)
		if err != nil {
			t.Fatal(err)
		}
		if (step.Pod != nil) != c.creates || len(api.asked) != c.lists {
			t.Errorf("%s: creates the Pod: %t, by %q", c.what, step.Pod != nil, api.asked)
		}
	}
}
