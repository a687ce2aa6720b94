// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	poolapi "github.com/vireo-project/vireo/api/pool"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// A user may write the data of a revision. If its quantity were decoded, this test would not end.
func TestARevisionWithAHugeQuantityIsNotDecoded(t *testing.T) {
	pool := &poolv1.VirtualMachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u"}}
	revision := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(pool, poolv1.GroupVersion.WithKind(poolapi.VirtualMachinePoolKind)),
		}},
		Data: runtime.RawExtension{Raw: []byte(`{"virtualMachineTemplate":{"spec":{"template":{"spec":{"domain":{"memory":{"guest":"1e-1000000000"}}}}}}}`)},
	}
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "web-0",
		Labels: map[string]string{v1.VirtualMachinePoolRevisionName: "web-1"}}}
	vm.Spec.Template = &v1.VirtualMachineInstanceTemplateSpec{}
	s := &Scope{
		APIReader: fake.NewClientBuilder().WithObjects(revision).Build(), Key: client.ObjectKeyFromObject(pool), Pool: pool,
		members: []*member{{vm: vm}},
	}
	r := &revisions{current: "web-2", specs: map[string]*poolv1.VirtualMachinePoolSpec{}}
	if err := r.read(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if spec, read := r.specs["web-1"]; !read || spec != nil {
		t.Errorf("read %v: %v", read, spec)
	}
}
