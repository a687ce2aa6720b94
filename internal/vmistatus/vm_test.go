// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

func TestVMOf(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*metav1.OwnerReference)
		is     bool
	}{
		"its VM":             {func(*metav1.OwnerReference) {}, true},
		"an earlier version": {func(o *metav1.OwnerReference) { o.APIVersion = "kubevirt.io/v1alpha3" }, true},
		"another kind":       {func(o *metav1.OwnerReference) { o.Kind = "VirtualMachineInstanceReplicaSet" }, false},
		"another group":      {func(o *metav1.OwnerReference) { o.APIVersion = "team.example/v1" }, false},
		"another name":       {func(o *metav1.OwnerReference) { o.Name = "other" }, false},
		"no controller":      {func(o *metav1.OwnerReference) { o.Controller = ptr.To(false) }, false},
	} {
		vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: "a"}}
		owner := metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)
		tc.change(owner)
		vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm",
			OwnerReferences: []metav1.OwnerReference{*owner}}}
		if got := vmistatus.VMOf(vmi); (got != nil) != tc.is || tc.is && got.UID != "a" {
			t.Errorf("%s: %v", name, got)
		}
	}
}
