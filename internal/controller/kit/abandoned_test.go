// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

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
