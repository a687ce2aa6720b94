// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestSyncs(t *testing.T) {
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }
	exist := map[types.NamespacedName]bool{key("a"): true, key("b"): true}
	s := &Syncs{Exists: func(_ context.Context, vmi types.NamespacedName) bool { return exist[vmi] }}
	called := 0
	r := s.Wrap(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		called++
		return reconcile.Result{}, nil
	}))
	reconciled := func(name string) {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key(name)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b", "a", "gone"} {
		reconciled(name)
	}
	expect := func(want string) {
		t.Helper()
		want = "# HELP kubevirt_vmi_sync_total How often a VMI was reconciled.\n# TYPE kubevirt_vmi_sync_total counter\n" + want
		if err := testutil.CollectAndCompare(s, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
	}
	expect("kubevirt_vmi_sync_total{name=\"a\",namespace=\"ns\"} 2\nkubevirt_vmi_sync_total{name=\"b\",namespace=\"ns\"} 1\n")
	delete(exist, key("a"))
	reconciled("a")
	expect("kubevirt_vmi_sync_total{name=\"b\",namespace=\"ns\"} 1\n")
	if called != 5 || len(s.count) != 1 {
		t.Errorf("called %d times, %d VMIs are remembered", called, len(s.count))
	}
}
