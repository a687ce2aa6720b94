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
	clonev1beta1 "kubevirt.io/api/clone/v1beta1"
	v1 "kubevirt.io/api/core/v1"
	exportv1beta1 "kubevirt.io/api/export/v1beta1"
	instancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"
	poolv1 "kubevirt.io/api/pool/v1beta1"
	snapshotv1beta1 "kubevirt.io/api/snapshot/v1beta1"
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
	return &v1.VirtualMachine{ObjectMeta: meta1(name), Spec: v1.VirtualMachineSpec{RunStrategy: &strategy, Template: template(name)}}
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
				Replicas: &replicas, Template: template("kind"), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kind"}},
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
		CPU: instancetypev1beta1.CPUInstancetype{Guest: 2}, Memory: instancetypev1beta1.MemoryInstancetype{Guest: resourceapi.MustParse("1Gi")},
	}
	everywhere := meta1("kind")
	everywhere.Namespace = ""
	t.Run("VirtualMachineInstancetype", func(t *testing.T) {
		testKind(t, kubevirt.VirtualMachineInstancetype(namespace), &instancetypev1beta1.VirtualMachineInstancetype{ObjectMeta: meta1("kind"), Spec: size})
	})
	t.Run("VirtualMachineClusterInstancetype", func(t *testing.T) {
		testKind(t, kubevirt.VirtualMachineClusterInstancetype(), &instancetypev1beta1.VirtualMachineClusterInstancetype{ObjectMeta: everywhere, Spec: size})
	})
	t.Run("VirtualMachinePreference", func(t *testing.T) {
		testKind(t, kubevirt.VirtualMachinePreference(namespace), &instancetypev1beta1.VirtualMachinePreference{ObjectMeta: meta1("kind")})
	})
	t.Run("VirtualMachineClusterPreference", func(t *testing.T) {
		testKind(t, kubevirt.VirtualMachineClusterPreference(), &instancetypev1beta1.VirtualMachineClusterPreference{ObjectMeta: everywhere})
	})
	t.Run("VirtualMachineInstanceMigration", func(t *testing.T) {
		testKind(t, kubevirt.VirtualMachineInstanceMigration(namespace), &v1.VirtualMachineInstanceMigration{
			ObjectMeta: meta1("kind"), Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: "kind"},
		})
	})
	t.Run("KubeVirt", func(t *testing.T) {
		testKind(t, kubevirt.KubeVirt(namespace), &v1.KubeVirt{ObjectMeta: meta1("kind")})
	})
}

// statusOf is KubeVirt's client of a kind with a status.
type statusOf[T metav1.Object] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Get(context.Context, string, metav1.GetOptions) (T, error)
	UpdateStatus(context.Context, T, metav1.UpdateOptions) (T, error)
}

func TestSnapshotsRestoresAndClones(t *testing.T) {
	group, snapshotGroup := "kubevirt.io", "snapshot.kubevirt.io"
	vm := corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VirtualMachine", Name: "vm"}
	yes, name := true, "kind"
	t.Run("VirtualMachineSnapshot", func(t *testing.T) {
		client := kubevirt.VirtualMachineSnapshot(namespace)
		of := &snapshotv1beta1.VirtualMachineSnapshot{ObjectMeta: meta1("kind"), Spec: snapshotv1beta1.VirtualMachineSnapshotSpec{Source: vm}}
		testKind(t, client, of)
		got := testStatus(t, client, of, func(of *snapshotv1beta1.VirtualMachineSnapshot) {
			of.Status = &snapshotv1beta1.VirtualMachineSnapshotStatus{ReadyToUse: &yes}
		})
		if got.Status != nil || got.Spec.Source.Name != "vm" || *got.Spec.Source.APIGroup != group {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("VirtualMachineSnapshotContent", func(t *testing.T) {
		client := kubevirt.VirtualMachineSnapshotContent(namespace)
		of := &snapshotv1beta1.VirtualMachineSnapshotContent{ObjectMeta: meta1("kind"), Spec: snapshotv1beta1.VirtualMachineSnapshotContentSpec{
			VirtualMachineSnapshotName: &name,
			Source: snapshotv1beta1.SourceSpec{VirtualMachine: &snapshotv1beta1.VirtualMachine{
				ObjectMeta: meta1("vm"), Spec: newVM("vm", v1.RunStrategyHalted).Spec,
			}},
			VolumeBackups: []snapshotv1beta1.VolumeBackup{{VolumeName: "root", VolumeSnapshotName: &name}},
		}}
		testKind(t, client, of)
		got := testStatus(t, client, of, func(of *snapshotv1beta1.VirtualMachineSnapshotContent) {
			of.Status = &snapshotv1beta1.VirtualMachineSnapshotContentStatus{ReadyToUse: &yes}
		})
		stored := got.Spec.Source.VirtualMachine
		if got.Status != nil || stored == nil || stored.Name != "vm" || *stored.Spec.RunStrategy != v1.RunStrategyHalted || len(got.Spec.VolumeBackups) != 1 {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("VirtualMachineRestore", func(t *testing.T) {
		client := kubevirt.VirtualMachineRestore(namespace)
		of := &snapshotv1beta1.VirtualMachineRestore{ObjectMeta: meta1("kind"), Spec: snapshotv1beta1.VirtualMachineRestoreSpec{
			Target: vm, VirtualMachineSnapshotName: "snap", Patches: []string{`{"op":"remove","path":"/spec/x"}`},
		}}
		testKind(t, client, of)
		got := testStatus(t, client, of, func(of *snapshotv1beta1.VirtualMachineRestore) {
			of.Status = &snapshotv1beta1.VirtualMachineRestoreStatus{Complete: &yes}
		})
		if got.Status != nil || got.Spec.Target.Name != "vm" || len(got.Spec.Patches) != 1 {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("VirtualMachineClone", func(t *testing.T) {
		client := kubevirt.VirtualMachineClone(namespace)
		source := corev1.TypedLocalObjectReference{APIGroup: &snapshotGroup, Kind: "VirtualMachineSnapshot", Name: "snap"}
		of := &clonev1beta1.VirtualMachineClone{ObjectMeta: meta1("kind"), Spec: clonev1beta1.VirtualMachineCloneSpec{
			Source: &source, Target: &vm, LabelFilters: []string{"*"}, NewMacAddresses: map[string]string{"default": "02:00:00:00:00:01"},
		}}
		testKind(t, client, of)
		got := testStatus(t, client, of, func(of *clonev1beta1.VirtualMachineClone) { of.Status.Phase = clonev1beta1.Succeeded })
		if got.Status.Phase != clonev1beta1.PhaseUnset || got.Spec.Source.Name != "snap" || got.Spec.NewMacAddresses["default"] == "" {
			t.Errorf("got %+v", got)
		}
	})
}

func TestExports(t *testing.T) {
	group, secret, ttl := "", "token", metav1.Duration{Duration: time.Hour}
	claim := corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "PersistentVolumeClaim", Name: "data"}
	client := kubevirt.VirtualMachineExport(namespace)
	of := &exportv1beta1.VirtualMachineExport{ObjectMeta: meta1("kind"), Spec: exportv1beta1.VirtualMachineExportSpec{
		Source: claim, TokenSecretRef: &secret, TTLDuration: &ttl,
	}}
	testKind(t, client, of)
	got := testStatus(t, client, of, func(of *exportv1beta1.VirtualMachineExport) {
		of.Status = &exportv1beta1.VirtualMachineExportStatus{Phase: exportv1beta1.Ready}
	})
	if got.Status != nil || got.Spec.Source.Name != "data" || *got.Spec.TokenSecretRef != secret || got.Spec.TTLDuration.Duration != time.Hour {
		t.Errorf("got %+v", got)
	}
}

// testStatus expects that only the components write the status of an object, and returns the object.
func testStatus[T metav1.Object](t *testing.T, client statusOf[T], object T, change func(T)) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	object.SetName("status")
	created, err := client.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	change(created)
	if _, err := client.UpdateStatus(ctx, created, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("update the status: got %v, want that it is forbidden", err)
	}
	got, err := client.Get(ctx, object.GetName(), metav1.GetOptions{})
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	return got
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
