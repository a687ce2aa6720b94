// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinebackup

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"

	backupapi "github.com/vireo-project/vireo/api/backup"
	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/backup/plan"
)

// backupNamed returns a backup with its finalizer, whose UID is its name.
func backupNamed(name string, changes ...func(*v1alpha1.VirtualMachineBackup)) *v1alpha1.VirtualMachineBackup {
	b := &v1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(name), Finalizers: []string{backupapi.VirtualMachineBackupFinalizer},
	}}
	for _, change := range changes {
		change(b)
	}
	return b
}

// unprotected removes the finalizer, as somebody else does by force.
func unprotected(b *v1alpha1.VirtualMachineBackup) { b.Finalizers = nil }

// deleting keeps the backup for another finalizer.
func deleting(b *v1alpha1.VirtualMachineBackup) {
	b.DeletionTimestamp, b.Finalizers = ptr.To(metav1.NewTime(time.Unix(1, 0))), append(b.Finalizers, "example.com/f")
}

func failed(b *v1alpha1.VirtualMachineBackup) {
	b.Status = &v1alpha1.VirtualMachineBackupStatus{
		Conditions: []metav1.Condition{{Type: string(v1alpha1.ConditionFailed), Status: metav1.ConditionTrue}},
	}
}

// heldBy returns a running VMI with the volumes and the intents of backups.
func heldBy(uids ...string) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm"}}
	vmi.Status.Phase = v1.Running
	for _, uid := range uids {
		volume := plan.VolumeName(backupNamed(uid))
		vmi.Spec.UtilityVolumes = append(vmi.Spec.UtilityVolumes, v1.UtilityVolume{Name: volume, Type: ptr.To(v1.Backup)})
		vmi.Status.DiskBackup = &v1.DiskBackup{ID: uid, UtilityVolume: volume}
	}
	return vmi
}

func TestAbandoned(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	world := func(initial ...client.Object) client.WithWatch {
		// The tracker is one without managed fields, which it cannot deduce for a VMI.
		tracker := clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
		return fake.NewClientBuilder().WithScheme(scheme).WithObjectTracker(tracker).WithStatusSubresource(
			&v1.VirtualMachineInstance{}).WithObjects(initial...).
			WithIndex(&v1alpha1.VirtualMachineBackup{}, UIDIndex, func(o client.Object) []string {
				b, _ := o.(*v1alpha1.VirtualMachineBackup)
				return UnfinishedUID(b)
			}).Build()
	}
	elsewhere := backupNamed("b", func(b *v1alpha1.VirtualMachineBackup) { b.Namespace = "other" })
	again := backupNamed("b", func(b *v1alpha1.VirtualMachineBackup) { b.UID = "b-again" })
	held, heldByBoth := heldBy("b"), heldBy("a", "b")
	there, withoutFinalizer, attached := backupNamed("b"), backupNamed("b", unprotected), []string{"backup-b"}
	type objects = []client.Object
	for name, tc := range map[string]struct {
		// live are the objects of the API server, and cached those of the cache, if they are others.
		live, cached objects
		// canceled is the state of the intent, and volumes are the utility volumes that are left.
		canceled bool
		volumes  []string
	}{
		"there":                                {objects{held, there}, nil, false, attached},
		"there, and new to the cache":          {objects{held, there}, objects{held}, false, attached},
		"gone, and not yet so for the cache":   {objects{held}, objects{held, there}, false, attached},
		"there, and gets its finalizer again":  {objects{held, withoutFinalizer}, nil, false, attached},
		"deleted":                              {objects{held, backupNamed("b", deleting)}, nil, false, attached},
		"gone":                                 {objects{held}, nil, true, attached},
		"replaced by one of the same name":     {objects{held, again}, nil, true, attached},
		"in another namespace":                 {objects{held, elsewhere}, nil, true, attached},
		"deleted, without its finalizer":       {objects{held, backupNamed("b", unprotected, deleting)}, nil, true, attached},
		"failed, without its finalizer":        {objects{held, backupNamed("b", failed, unprotected)}, nil, true, attached},
		"gone, after another one that is gone": {objects{heldByBoth}, nil, true, attached},
		"there, with another one that is gone": {objects{heldByBoth, there}, nil, false, attached},
		"there, with another one":              {objects{heldByBoth, there, backupNamed("a")}, nil, false, []string{"backup-a", "backup-b"}},
	} {
		t.Run(name, func(t *testing.T) {
			live := world(tc.live...)
			cached := live
			if tc.cached != nil {
				cached = world(tc.cached...)
			}
			a := Abandoned{&Reconciler{Client: stale{live, cached}, APIReader: live}}
			for range 5 {
				if _, err := a.Reconcile(t.Context(),
					ctrl.Request{NamespacedName: client.ObjectKeyFromObject(heldBy())}); err != nil {
					t.Fatal(err)
				}
			}
			vmi := &v1.VirtualMachineInstance{}
			if err := live.Get(t.Context(), client.ObjectKeyFromObject(heldBy()), vmi); err != nil {
				t.Fatal(err)
			}
			var volumes []string
			for _, volume := range vmi.Spec.UtilityVolumes {
				volumes = append(volumes, volume.Name)
			}
			if intent := vmi.Status.DiskBackup; intent == nil || intent.Canceled != tc.canceled ||
				!slices.Equal(volumes, tc.volumes) {
				t.Errorf("the intent is %+v, and the volumes are %v", intent, volumes)
			}
		})
	}
	t.Run("no VMI", func(t *testing.T) {
		api := world()
		if _, err := (Abandoned{&Reconciler{Client: api, APIReader: api}}).Reconcile(t.Context(),
			ctrl.Request{}); err != nil {
			t.Error(err)
		}
	})
}

// stale writes to the API server, and reads from a cache.
type stale struct {
	client.WithWatch
	cached client.Reader
}

func (s stale) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	return s.cached.Get(ctx, key, object, options...)
}

func (s stale) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return s.cached.List(ctx, list, options...)
}

func TestEventsOfAbandonedBackups(t *testing.T) {
	if isInUse.Create(event.CreateEvent{Object: heldBy()}) || !isInUse.Create(event.CreateEvent{Object: heldBy("b")}) {
		t.Error("not the VMIs are passed in which a backup has something")
	}
	if isAbandoned.Create(event.CreateEvent{Object: backupNamed("b")}) ||
		!isAbandoned.Delete(event.DeleteEvent{Object: backupNamed("b")}) {
		t.Error("not the backups are passed that are gone")
	}
	for name, tc := range map[string]struct {
		backup *v1alpha1.VirtualMachineBackup
		want   bool
	}{
		"unfinished":                     {backupNamed("b"), false},
		"without a finalizer":            {backupNamed("b", unprotected), false},
		"failed":                         {backupNamed("b", failed), false},
		"failed, without a finalizer":    {backupNamed("b", failed, unprotected), true},
		"deleted":                        {backupNamed("b", deleting), false},
		"deleted, without its finalizer": {backupNamed("b", unprotected, deleting), true},
	} {
		if got := isAbandoned.Update(event.UpdateEvent{ObjectOld: backupNamed("b"), ObjectNew: tc.backup}); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}
