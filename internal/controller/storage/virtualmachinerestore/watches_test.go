// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinerestore

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/test/builder"
)

// indexer adds indexes to a fake client.
type indexer struct{ *fake.ClientBuilder }

func (i indexer) IndexField(_ context.Context, object client.Object, field string, values client.IndexerFunc) error {
	i.WithIndex(object, field, values)
	return nil
}

// newIndexed returns a reconciler whose cache has these objects.
func newIndexed(t *testing.T, objects ...client.Object) *Reconciler {
	t.Helper()
	scheme := runtime.NewScheme()
	utilruntime.Must(v1beta1.AddToScheme(scheme))
	utilruntime.Must(v1.AddToScheme(scheme))
	b := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...)
	if err := kit.AddIndexes(indexer{b}, targetIndex, awaitedIndex, underwayIndex); err != nil {
		t.Fatal(err)
	}
	return &Reconciler{Client: b.Build()}
}

// names returns the names of requests, each once.
func names(requests []ctrl.Request) []string {
	var out []string
	for _, request := range requests {
		out = append(out, request.Name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func restoreTo(
	name, target, snapshot string, status *v1beta1.VirtualMachineRestoreStatus,
) *v1beta1.VirtualMachineRestore {
	out := &v1beta1.VirtualMachineRestore{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Status: status}
	out.Spec.Target.Name, out.Spec.VirtualMachineSnapshotName = target, snapshot
	return out
}

func TestARestoreIsTriggeredByWhatItWaitsFor(t *testing.T) {
	planned := func(complete bool) *v1beta1.VirtualMachineRestoreStatus {
		return &v1beta1.VirtualMachineRestoreStatus{
			Complete: ptr.To(complete), DeletedDataVolumes: []string{"root-dv"},
			Restores: []v1beta1.VolumeRestore{{PersistentVolumeClaimName: "restored-root"},
				{PersistentVolumeClaimName: "restored-data"}},
		}
	}
	elsewhere := restoreTo("elsewhere", "vm", "snap", planned(false))
	elsewhere.Namespace = "other"
	r := newIndexed(t,
		restoreTo("planned", "vm", "snap", planned(false)), restoreTo("done", "vm", "snap", planned(true)),
		restoreTo("new", "another", "later", nil), elsewhere)
	claim := func(name string, labels ...string) client.Object {
		out := builder.MakePVC(name).Obj()
		for i := 0; i < len(labels); i += 2 {
			metav1.SetMetaDataLabel(&out.ObjectMeta, labels[i], labels[i+1])
		}
		return out
	}
	snapshotNamed := func(name string) *v1beta1.VirtualMachineSnapshot {
		return &v1beta1.VirtualMachineSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	}
	content := func(name *string) *v1beta1.VirtualMachineSnapshotContent {
		out := &v1beta1.VirtualMachineSnapshotContent{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "snap"}}
		out.Spec.VirtualMachineSnapshotName = name
		return out
	}
	imported := func(namespace, name string) []ctrl.Request {
		return r.restoresOfDataVolume(t.Context(), datavolume.Change{Namespace: namespace, Name: name})
	}
	locked := func(name, restore string) client.Object {
		vm := builder.MakeVM(name).Obj()
		vm.Status.RestoreInProgress = &restore
		return vm
	}
	for name, tc := range map[string]struct {
		got  []ctrl.Request
		want []string
	}{
		"a restored claim":                {r.restoresOfClaim(t.Context(), claim("restored-data")), []string{"planned"}},
		"any other claim":                 {r.restoresOfClaim(t.Context(), claim("data")), nil},
		"the claim of a former template":  {r.restoresOfClaim(t.Context(), claim("root-dv")), []string{"planned"}},
		"the state of the target":         {r.restoresOfClaim(t.Context(), claim("x", v1.PersistentStateLabel, "vm")), []string{"planned"}},
		"the state of a target to create": {r.restoresOfClaim(t.Context(), claim("x", v1.PersistentStateLabel, "another")), []string{"new"}},
		"the state of any other VM":       {r.restoresOfClaim(t.Context(), claim("x", v1.PersistentStateLabel, "third")), nil},
		"a state that is to be deleted": {
			r.restoresOfClaim(t.Context(), claim("x", snapshot.RestoreCleanupStateLabel, "persistent-state-for-vm")),
			[]string{"planned"},
		},
		"a restored state of another target": {
			r.restoresOfClaim(t.Context(), claim("restored-data", v1.PersistentStateLabel, "another")),
			[]string{"new", "planned"},
		},
		"the snapshot":               {r.restoresOfSnapshot(t.Context(), snapshotNamed("snap")), []string{"planned"}},
		"a snapshot to be taken":     {r.restoresOfSnapshot(t.Context(), snapshotNamed("later")), []string{"new"}},
		"any other snapshot":         {r.restoresOfSnapshot(t.Context(), snapshotNamed("vm")), nil},
		"the content":                {r.restoresOfContent(t.Context(), content(ptr.To("snap"))), []string{"planned"}},
		"the content of another":     {r.restoresOfContent(t.Context(), content(ptr.To("x"))), nil},
		"a content without snapshot": {r.restoresOfContent(t.Context(), content(nil)), nil},
		"a restored DataVolume":      {imported("default", "restored-root"), []string{"planned"}},
		"a former DataVolume":        {imported("default", "root-dv"), []string{"planned"}},
		"any other DataVolume":       {imported("default", "data"), nil},
		"the importer":               {imported("", ""), []string{"elsewhere", "new", "planned"}},
		"the instance of the target": {r.restoresOfTarget(t.Context(), builder.MakeVMI("vm").Obj()), []string{"planned"}},
		"the target":                 {r.restoresOfVM(t.Context(), builder.MakeVM("vm").Obj()), []string{"planned"}},
		"the target, locked":         {r.restoresOfVM(t.Context(), locked("vm", "planned")), []string{"planned"}},
		"a VM that is locked":        {r.restoresOfVM(t.Context(), locked("third", "gone")), []string{"gone"}},
	} {
		if diff := cmp.Diff(tc.want, names(tc.got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
