// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package access

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// timeout is how long a new policy may take to be effective.
const timeout = 30 * time.Second

// TestOnlyComponentsWriteStatus checks the policy for status, as users whom RBAC allows everything, in the cluster or
// in the namespaces of the objects.
func TestOnlyComponentsWriteStatus(t *testing.T) {
	ctx := t.Context()
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "status", Namespace: namespace}}
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Name: "status", Namespace: "kubevirt"}}
	set := &v1.VirtualMachineInstanceReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "status", Namespace: namespace}}
	set.Spec.Selector = &metav1.LabelSelector{}
	set.Spec.Template = &v1.VirtualMachineInstanceTemplateSpec{}
	// A user who could write the phase of a few migrations could occupy all slots of the cluster.
	migration := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Name: "status", Namespace: namespace}}
	migration.Spec.VMIName = vmi.Name
	pool := &poolv1.VirtualMachinePool{ObjectMeta: metav1.ObjectMeta{Name: "status", Namespace: namespace}}
	pool.Spec.Selector = &metav1.LabelSelector{}
	pool.Spec.VirtualMachineTemplate = &poolv1.VirtualMachineTemplateSpec{Spec: newVM("status").Spec}
	objects := []client.Object{newVM("status"), vmi, kv, set, migration, pool}
	// A user who could write these could restore what was never stored.
	meta := metav1.ObjectMeta{Name: "status", Namespace: namespace}
	objects = append(objects, &snapshotv1beta1.VirtualMachineSnapshot{ObjectMeta: meta},
		&snapshotv1beta1.VirtualMachineSnapshotContent{ObjectMeta: meta},
		&snapshotv1beta1.VirtualMachineRestore{ObjectMeta: meta})
	clone := &clonev1beta1.VirtualMachineClone{ObjectMeta: meta}
	clone.Spec.Source = &corev1.TypedLocalObjectReference{Kind: "VirtualMachine", Name: "status"}
	// Clients send the token of an export to the addresses in its status.
	export := &exportv1.VirtualMachineExport{ObjectMeta: meta}
	export.Spec.Source = corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "status"}
	backup := &backupv1alpha1.VirtualMachineBackup{ObjectMeta: meta}
	backup.Spec.PvcName = ptr.To("status")
	backup.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine",
		Name: "status"}
	tracker := &backupv1alpha1.VirtualMachineBackupTracker{ObjectMeta: meta}
	tracker.Spec.Source = backup.Spec.Source
	objects = append(objects, clone, export, backup, tracker)
	for _, object := range objects {
		if err := cluster.Create(ctx, object); err != nil {
			t.Fatal(err)
		}
	}
	if err := create(ctx, filepath.Join("admission", "status.yaml")); err != nil {
		t.Fatal(err)
	}
	for _, in := range []string{namespace, "kubevirt"} {
		owners := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "owners", Namespace: in},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "owners"}},
		}
		if err := cluster.Create(ctx, owners); err != nil {
			t.Fatal(err)
		}
	}
	write := func(user, group string, object client.Object) error {
		return as(t, user, group).Status().Patch(ctx, object.DeepCopyObject().(client.Object),
			client.RawPatch("application/merge-patch+json", []byte(`{"status":{"observedGeneration":1,"reason":"r"}}`)))
	}
	for deadline := time.Now().Add(timeout); write("owner", "owners",
		objects[0]) == nil; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the policy is not effective")
		}
	}
	for _, object := range objects {
		// An administrator may repair what is only reported.
		repairs := false
		switch object.(type) {
		case *v1.VirtualMachine, *v1.KubeVirt, *v1.VirtualMachineInstanceReplicaSet, *v1.VirtualMachineInstanceMigration:
			repairs = true
		}
		if err := write("root", "system:masters", object); (err == nil) != repairs {
			t.Errorf("%T: an administrator: %v", object, err)
		}
		for user, allowed := range map[string]bool{
			"owner": false, "system:serviceaccount:team:default": false, "kubevirt-controller": false,
			// A tenant's service account may have the name of a component's.
			"system:serviceaccount:team:kubevirt-controller": false, "system:serviceaccount:team:kubevirt-handler": false,
			"system:serviceaccount:team:kubevirt-apiserver":       false,
			"system:serviceaccount:kubevirt:kubevirt-exportproxy": false,
			"system:serviceaccount:kubevirt:kubevirt-controller":  true,
			"system:serviceaccount:kubevirt:kubevirt-handler":     true,
			"system:serviceaccount:kubevirt:kubevirt-apiserver":   true,
		} {
			err := write(user, "owners", object)
			denied := err != nil && strings.Contains(err.Error(), "change the spec instead")
			// virt-api's writes may be denied by the policy kubevirt-apiserver-writes, which other tests install.
			if allowed && err != nil && (denied || !strings.Contains(err.Error(), "kubevirt-apiserver-writes")) {
				t.Errorf("%T: %s: %v", object, user, err)
			}
			if !allowed && !denied {
				t.Errorf("%T: %s: got %v, want the policy's error", object, user, err)
			}
		}
	}
}
