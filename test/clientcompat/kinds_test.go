// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clientcompat

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	resourceapi "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	v1 "kubevirt.io/api/core/v1"
	instancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"
	migrationsv1alpha1 "kubevirt.io/api/migrations/v1alpha1"
	poolv1 "kubevirt.io/api/pool/v1beta1"
)

const namespace = "default"

// timeout is long enough for a loaded machine.
const timeout = 2 * time.Minute

// resource is KubeVirt's client of a kind.
type resource[T metav1.Object, L runtime.Object] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Get(context.Context, string, metav1.GetOptions) (T, error)
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
	Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}

func meta1(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"test": name}}
}

func template(name string) *v1.VirtualMachineInstanceTemplateSpec {
	return &v1.VirtualMachineInstanceTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
		Spec: v1.VirtualMachineInstanceSpec{
			Domain: v1.DomainSpec{Resources: v1.ResourceRequirements{Requests: corev1.ResourceList{}}},
		},
	}
}

func newVM(name string, strategy v1.VirtualMachineRunStrategy) *v1.VirtualMachine {
	return &v1.VirtualMachine{ObjectMeta: meta1(name),
		Spec: v1.VirtualMachineSpec{RunStrategy: &strategy, Template: template(name)}}
}

func newVMI(name string) *v1.VirtualMachineInstance {
	return &v1.VirtualMachineInstance{ObjectMeta: meta1(name), Spec: template(name).Spec}
}

func TestKinds(t *testing.T) {
	t.Run("VirtualMachine", func(t *testing.T) {
		testKind(t, kubevirt.VirtualMachine(namespace), newVM("kind", v1.RunStrategyHalted))
	})
	t.Run("VirtualMachineInstance", func(t *testing.T) {
		testKind(t, kubevirt.VirtualMachineInstance(namespace), newVMI("kind"))
	})
	t.Run("VirtualMachineInstanceReplicaSet", func(t *testing.T) {
		replicas := int32(3)
		testKind(t, kubevirt.ReplicaSet(namespace), &v1.VirtualMachineInstanceReplicaSet{
			ObjectMeta: meta1("kind"), Spec: v1.VirtualMachineInstanceReplicaSetSpec{
				Replicas: &replicas, Template: template("kind"),
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kind"}},
			},
		})
	})
	t.Run("VirtualMachinePool", func(t *testing.T) {
		strategy := v1.RunStrategyHalted
		testKind(t, kubevirt.VirtualMachinePool(namespace), &poolv1.VirtualMachinePool{
			ObjectMeta: meta1("kind"), Spec: poolv1.VirtualMachinePoolSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kind"}},
				VirtualMachineTemplate: &poolv1.VirtualMachineTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "kind"}},
					Spec:       v1.VirtualMachineSpec{RunStrategy: &strategy, Template: template("kind")},
				},
			},
		})
	})
	size := instancetypev1beta1.VirtualMachineInstancetypeSpec{
		CPU:    instancetypev1beta1.CPUInstancetype{Guest: 2},
		Memory: instancetypev1beta1.MemoryInstancetype{Guest: resourceapi.MustParse("1Gi")},
	}
	everywhere := meta1("kind")
	everywhere.Namespace = ""
	t.Run("VirtualMachineInstancetype", func(t *testing.T) {
		testKind(t, kubevirt.VirtualMachineInstancetype(namespace),
			&instancetypev1beta1.VirtualMachineInstancetype{ObjectMeta: meta1("kind"), Spec: size})
	})
	t.Run("VirtualMachineClusterInstancetype", func(t *testing.T) {
		testKind(t, kubevirt.VirtualMachineClusterInstancetype(),
			&instancetypev1beta1.VirtualMachineClusterInstancetype{ObjectMeta: everywhere, Spec: size})
	})
	t.Run("VirtualMachinePreference", func(t *testing.T) {
		testKind(t, kubevirt.VirtualMachinePreference(namespace),
			&instancetypev1beta1.VirtualMachinePreference{ObjectMeta: meta1("kind")})
	})
	t.Run("VirtualMachineClusterPreference", func(t *testing.T) {
		testKind(t, kubevirt.VirtualMachineClusterPreference(),
			&instancetypev1beta1.VirtualMachineClusterPreference{ObjectMeta: everywhere})
	})
	t.Run("VirtualMachineInstanceMigration", func(t *testing.T) {
		testKind(t, kubevirt.VirtualMachineInstanceMigration(namespace), &v1.VirtualMachineInstanceMigration{
			ObjectMeta: meta1("kind"), Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: "kind"},
		})
	})
	t.Run("MigrationPolicy", func(t *testing.T) {
		testKind(t, kubevirt.MigrationPolicy(),
			&migrationsv1alpha1.MigrationPolicy{ObjectMeta: everywhere, Spec: migrationsv1alpha1.MigrationPolicySpec{
				Selectors: &migrationsv1alpha1.Selectors{
					VirtualMachineInstanceSelector: migrationsv1alpha1.LabelSelector{"size": "large"}},
			}})
	})
	t.Run("KubeVirt", func(t *testing.T) {
		testKind(t, kubevirt.KubeVirt(namespace), &v1.KubeVirt{ObjectMeta: meta1("kind")})
	})
}

// testKind creates, reads, watches, changes and deletes an object.
func testKind[T metav1.Object, L runtime.Object](t *testing.T, client resource[T, L], object T) {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	only := metav1.ListOptions{LabelSelector: "test=" + object.GetName()}
	watched, err := client.Watch(ctx, only)
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	defer watched.Stop()
	created, err := client.Create(ctx, object, metav1.CreateOptions{})
	if err != nil || created.GetUID() == "" {
		t.Fatalf("create: %v", err)
	}
	expectEvent(t, watched, watch.Added, created.GetUID())
	got, err := client.Get(ctx, object.GetName(), metav1.GetOptions{})
	if err != nil || got.GetUID() != created.GetUID() {
		t.Fatalf("get: %v", err)
	}
	list, err := client.List(ctx, only)
	if err != nil || meta.LenList(list) != 1 {
		t.Errorf("list: %d objects, %v", meta.LenList(list), err)
	}
	got.SetAnnotations(map[string]string{"updated": "yes"})
	updated, err := client.Update(ctx, got, metav1.UpdateOptions{})
	if err != nil || updated.GetAnnotations()["updated"] != "yes" {
		t.Errorf("update: %v", err)
	}
	expectEvent(t, watched, watch.Modified, created.GetUID())
	for kind, patch := range map[types.PatchType]string{
		types.MergePatchType: `{"metadata":{"annotations":{"merge":"yes"}}}`,
		types.JSONPatchType:  `[{"op":"add","path":"/metadata/annotations/json","value":"yes"}]`,
	} {
		if _, err := client.Patch(ctx, object.GetName(), kind, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Errorf("patch %s: %v", kind, err)
		}
		expectEvent(t, watched, watch.Modified, created.GetUID())
	}
	if err := client.Delete(ctx, object.GetName(), metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete: %v", err)
	}
	expectEvent(t, watched, watch.Deleted, created.GetUID())
	if _, err := client.Get(ctx, object.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get after delete: %v", err)
	}
}

func expectEvent(t *testing.T, watched watch.Interface, want watch.EventType, uid types.UID) {
	t.Helper()
	select {
	case event, open := <-watched.ResultChan():
		if !open || event.Type != want {
			t.Fatalf("watch: got %v %v, want %v", event.Type, event.Object, want)
		}
		if object, err := meta.Accessor(event.Object); err != nil || object.GetUID() != uid {
			t.Errorf("watch: %v is about another object: %v", want, err)
		}
	case <-time.After(timeout):
		t.Fatalf("watch: no %v", want)
	}
}
