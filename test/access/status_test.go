// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package access

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// patience is how long the API server may take to hold requests against a new policy.
const patience = 30 * time.Second

// TestTheStatusIsOurs asks as those whom RBAC lets through: the policy stands behind it.
func TestTheStatusIsOurs(t *testing.T) {
	ctx := t.Context()
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "status", Namespace: namespace}}
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Name: "status", Namespace: "kubevirt"}}
	set := &v1.VirtualMachineInstanceReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "status", Namespace: namespace}}
	set.Spec.Selector = &metav1.LabelSelector{}
	set.Spec.Template = &v1.VirtualMachineInstanceTemplateSpec{}
	// Whoever wrote the phase of a few migrations could take all slots of the cluster.
	migration := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Name: "status", Namespace: namespace}}
	migration.Spec.VMIName = vmi.Name
	objects := []client.Object{newVM("status"), vmi, kv, set, migration}
	for _, object := range objects {
		if err := cluster.Create(ctx, object); err != nil {
			t.Fatal(err)
		}
	}
	if err := create(ctx, filepath.Join("admission", "status.yaml")); err != nil {
		t.Fatal(err)
	}
	write := func(user string, object client.Object) error {
		return as(t, user, "system:masters").Status().Patch(ctx, object.DeepCopyObject().(client.Object),
			client.RawPatch("application/merge-patch+json", []byte(`{"status":{"observedGeneration":1,"reason":"r"}}`)))
	}
	for deadline := time.Now().Add(patience); write("root", objects[0]) == nil; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the policy does not hold")
		}
	}
	for _, object := range objects {
		for user, ours := range map[string]bool{
			"root": false, "system:serviceaccount:team:default": false, "kubevirt-controller": false,
			// A tenant may call an account as ours are called.
			"system:serviceaccount:team:kubevirt-controller": false, "system:serviceaccount:team:kubevirt-handler": false,
			"system:serviceaccount:team:kubevirt-apiserver":      false,
			"system:serviceaccount:kubevirt:kubevirt-controller": true,
			"system:serviceaccount:kubevirt:kubevirt-handler":    true,
			"system:serviceaccount:kubevirt:kubevirt-apiserver":  true,
		} {
			err := write(user, object)
			refused := err != nil && strings.Contains(err.Error(), "change the spec instead")
			// What else virt-api may not write is another policy's, which other tests install.
			if ours && err != nil && (refused || !strings.Contains(err.Error(), "kubevirt-apiserver-writes")) {
				t.Errorf("%T: %s: %v", object, user, err)
			}
			if !ours && !refused {
				t.Errorf("%T: %s: got %v, want the policy's refusal", object, user, err)
			}
		}
	}
}
