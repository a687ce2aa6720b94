// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineexport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/vireo-project/vireo/api/cdi"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/test/builder"
)

func exportIn(namespace, name, group, kind, source string) *exportv1.VirtualMachineExport {
	export := &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "uid"}}
	export.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To(group), Kind: kind, Name: source}
	return export
}

func TestWhatConcernsExports(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, exportv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	vm := func(name, claim string) *v1.VirtualMachine {
		return builder.MakeVM(name).Namespace("a").Template(builder.MakeVMI(name).PVC("root", claim)).Obj()
	}
	ofSnapshot := exportIn("a", "of-snapshot", "snapshot.kubevirt.io", "VirtualMachineSnapshot", "snap")
	r := &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		vm("vm", "data"), vm("other", "other"), ofSnapshot,
		exportIn("a", "of-claim", "", "PersistentVolumeClaim", "data"),
		exportIn("b", "elsewhere", "", "PersistentVolumeClaim", "data"),
		exportIn("a", "of-vm", "kubevirt.io", "VirtualMachine", "vm"),
		exportIn("a", "of-other", "kubevirt.io", "VirtualMachine", "other"),
		exportIn("a", "of-nothing", "kubevirt.io", "VirtualMachine", "nothing"),
	).WithIndex(&exportv1.VirtualMachineExport{}, sourceField, func(o client.Object) []string {
		export, _ := o.(*exportv1.VirtualMachineExport)
		return sourceValues(export)
	}).Build()}
	in := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "a", Name: name} }
	made, state := &corev1.PersistentVolumeClaim{ObjectMeta: in("of-snapshot-root")},
		&corev1.PersistentVolumeClaim{ObjectMeta: in("state")}
	made.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(ofSnapshot,
		exportv1.GroupVersion.WithKind("VirtualMachineExport"))}
	state.Labels = map[string]string{v1.PersistentStateLabel: "other"}
	launcher := &corev1.Pod{ObjectMeta: in("virt-launcher-x"), Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "scratch"},
		{Name: "root", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
	}}}
	stored := &v1beta1.VirtualMachineSnapshotContent{ObjectMeta: in("content")}
	stored.Spec.VirtualMachineSnapshotName = ptr.To("snap")
	for name, tc := range map[string]struct {
		find func(context.Context) []ctrl.Request
		want string
	}{
		"a claim": {func(ctx context.Context) []ctrl.Request {
			return r.exportsOfClaim(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: in("data")})
		}, "a/of-claim a/of-vm"},
		"a claim of one": {func(ctx context.Context) []ctrl.Request { return r.exportsOfClaim(ctx, made) }, "a/of-snapshot"},
		"a state claim":  {func(ctx context.Context) []ctrl.Request { return r.exportsOfClaim(ctx, state) }, "a/of-other"},
		"a launcher":     {func(ctx context.Context) []ctrl.Request { return r.exportsOfLauncher(ctx, launcher) }, "a/of-claim a/of-vm"},
		"a content":      {func(ctx context.Context) []ctrl.Request { return r.exportsOfContent(ctx, stored) }, "a/of-snapshot"},
		"a VM":           {func(ctx context.Context) []ctrl.Request { return r.exportsOfSource(kindVM)(ctx, vm("vm", "data")) }, "a/of-vm"},
		"a DataVolume": {func(ctx context.Context) []ctrl.Request {
			return r.exportsOfDataVolume(ctx, datavolume.Change{Namespace: "a", Name: "other"})
		}, "a/of-other"},
		"the importer": {func(ctx context.Context) []ctrl.Request { return r.exportsOfDataVolume(ctx, datavolume.Change{}) },
			"a/of-claim a/of-nothing a/of-other a/of-snapshot a/of-vm b/elsewhere"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, request := range tc.find(t.Context()) {
				got = append(got, request.String())
			}
			slices.Sort(got)
			if text := strings.Join(got, " "); text != tc.want {
				t.Errorf("got %s, want %s", text, tc.want)
			}
		})
	}
}

// A VM may have many exports, and a launcher many claims.
func TestEachVMIsReadOnce(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, exportv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	reads := map[string]int{}
	objects := []client.Object{builder.MakeVM("vm").Namespace("a").Template(
		builder.MakeVMI("vm").PVC("root", "data").PVC("more", "more")).Obj()}
	for i := range 5 {
		objects = append(objects, exportIn("a", fmt.Sprintf("of-vm-%d", i), "kubevirt.io", "VirtualMachine", "vm"),
			exportIn("a", fmt.Sprintf("of-broken-%d", i), "kubevirt.io", "VirtualMachine", "broken"))
	}
	r := &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&exportv1.VirtualMachineExport{}, sourceField, func(o client.Object) []string {
			export, _ := o.(*exportv1.VirtualMachineExport)
			return sourceValues(export)
		}).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
				opts ...client.GetOption) error {
				reads[key.Name]++
				if key.Name == "broken" {
					return errors.New("not now")
				}
				return c.Get(ctx, key, o, opts...)
			},
		}).Build()}
	launcher := podWith("virt-launcher-x", "unrelated", "data", "more")
	if got := r.exportsOfLauncher(t.Context(), &launcher); len(got) != 10 || reads["vm"] != 1 || reads["broken"] != 1 {
		t.Errorf("got %v by %v", got, reads)
	}
	unused := podWith("virt-launcher-y")
	if got := r.exportsOfLauncher(t.Context(), &unused); len(got) != 0 || len(reads) != 2 || reads["vm"] != 1 {
		t.Errorf("got %v by %v", got, reads)
	}
}

func TestWhatMattersOfAnExport(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*exportv1.VirtualMachineExport)
		want   bool
	}{
		"nothing":     {func(*exportv1.VirtualMachineExport) {}, false},
		"its version": {func(e *exportv1.VirtualMachineExport) { e.ResourceVersion = "2" }, false},
		"its status": {func(e *exportv1.VirtualMachineExport) {
			e.Status = &exportv1.VirtualMachineExportStatus{ServiceName: "s"}
		}, false},
		"a label":       {func(e *exportv1.VirtualMachineExport) { e.Labels = map[string]string{"mine": "1"} }, false},
		"an annotation": {func(e *exportv1.VirtualMachineExport) { e.Annotations = map[string]string{"mine": "1"} }, false},
		"its spec":      {func(e *exportv1.VirtualMachineExport) { e.Generation++ }, true},
		"another one":   {func(e *exportv1.VirtualMachineExport) { e.UID = "other" }, true},
		"its owner":     {func(e *exportv1.VirtualMachineExport) { e.OwnerReferences = []metav1.OwnerReference{{Name: "backup"}} }, true},
	} {
		old := exportIn("a", "export", "", "PersistentVolumeClaim", "data")
		changed := old.DeepCopy()
		tc.change(changed)
		if got := exportChanges.Update(event.UpdateEvent{ObjectOld: old, ObjectNew: changed}); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestWhatMattersOfAClaim(t *testing.T) {
	owner := exportIn("a", "export", "", "PersistentVolumeClaim", "data")
	for name, tc := range map[string]struct {
		change func(*corev1.PersistentVolumeClaim)
		want   bool
	}{
		"nothing":       {func(*corev1.PersistentVolumeClaim) {}, false},
		"an annotation": {func(c *corev1.PersistentVolumeClaim) { c.Annotations = map[string]string{"mine": "1"} }, false},
		"its version":   {func(c *corev1.PersistentVolumeClaim) { c.ResourceVersion = "2" }, false},
		"its phase":     {func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost }, true},
		"its end":       {func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = ptr.To(metav1.Now()) }, true},
		"its content": {func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{cdi.ContentTypeAnnotation: "kubevirt"}
		}, true},
		"an empty content": {func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{cdi.ContentTypeAnnotation: ""}
		}, true},
		"its owner": {func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner,
				exportv1.GroupVersion.WithKind("VirtualMachineExport"))}
		}, true},
		"its VM": {func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{v1.PersistentStateLabel: "vm"} }, true},
		"its size": {func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
		}, true},
	} {
		old := builder.MakePVC("data").Namespace("a").Bound("1Gi").Obj()
		changed := old.DeepCopy()
		tc.change(changed)
		if got := claimChanges.Update(event.UpdateEvent{ObjectOld: old, ObjectNew: changed}); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
