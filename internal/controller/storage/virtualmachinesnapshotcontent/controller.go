// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshotcontent

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/internal/outcome"
)

// workers is how many contents are reconciled at the same time. KubeVirt's value.
const workers = 3

// Reconciler takes the snapshots of the disks in a content, while the guest is frozen, and reports their state.
type Reconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Recorder records events on contents and VMIs.
	Recorder events.EventRecorder
	// VolumeSnapshots reads and watches VolumeSnapshots and their classes.
	VolumeSnapshots kit.VolumeSnapshots
	// Clock defaults to the system's.
	Clock clock.PassiveClock
}

// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshotcontents,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshotcontents/status,verbs=patch
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshotcontents/finalizers,verbs=update
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshots,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list;watch
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshotclasses,verbs=list;watch
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=storageprofiles,verbs=list;watch
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=volumesnapshots.snapshot.storage.k8s.io;volumesnapshotclasses.snapshot.storage.k8s.io;storageprofiles.cdi.kubevirt.io,verbs=list;watch
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch

// Indexes of contents in the cache.
const (
	// volumeSnapshotIndex is by the names of the VolumeSnapshots.
	volumeSnapshotIndex = "spec.volumeBackups.volumeSnapshotName"
	// unfinishedIndex is by the name of the VM, as long as the snapshot is being taken.
	unfinishedIndex = "unfinished-of-virtualmachine"
)

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := kit.AddIndexes(
		mgr.GetFieldIndexer(),
		kit.IndexBy(&v1beta1.VirtualMachineSnapshotContent{}, volumeSnapshotIndex, volumeSnapshotNames),
		kit.IndexBy(&v1beta1.VirtualMachineSnapshotContent{}, unfinishedIndex, unfinishedOf),
	); err != nil {
		return err
	}
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachinesnapshotcontent").
		For(&v1beta1.VirtualMachineSnapshotContent{}).
		Watches(&v1beta1.VirtualMachineSnapshot{}, handler.EnqueueRequestsFromMapFunc(contentOf)).
		Watches(&v1.VirtualMachineInstance{},
			handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, vmi client.Object) []ctrl.Request {
				return r.find(ctx, vmi.GetNamespace(), unfinishedIndex, vmi.GetName())
			}), builder.WithPredicates(freezeChanged)).
		Watches(&v1.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(r.ofMigration),
			builder.WithPredicates(stopsWaiting)).
		WatchesRawSource(r.VolumeSnapshots.OnSnapshot(r.contentsWith)).
		WithOptions(kit.Fair(workers)), r)
}

func volumeSnapshotNames(content *v1beta1.VirtualMachineSnapshotContent) []string {
	var names []string
	for i := range content.Spec.VolumeBackups {
		if name := content.Spec.VolumeBackups[i].VolumeSnapshotName; name != nil {
			names = append(names, *name)
		}
	}
	return names
}

func unfinishedOf(content *v1beta1.VirtualMachineSnapshotContent) []string {
	if content.Spec.Source.VirtualMachine == nil || isCreated(content) {
		return nil
	}
	return []string{content.Spec.Source.VirtualMachine.Name}
}

// contentOf returns the content of a snapshot.
func contentOf(_ context.Context, object client.Object) []ctrl.Request {
	of, ok := object.(*v1beta1.VirtualMachineSnapshot)
	if !ok {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: of.Namespace, Name: capture.ContentName(of)}}}
}

// contentsWith returns the contents with a VolumeSnapshot, or all if the kind was installed or removed.
func (r *Reconciler) contentsWith(ctx context.Context, changed client.ObjectKey) []ctrl.Request {
	if changed.Name == "" {
		return kit.Requests(ctx, r.Client, &v1beta1.VirtualMachineSnapshotContentList{})
	}
	return r.find(ctx, changed.Namespace, volumeSnapshotIndex, changed.Name)
}

func (r *Reconciler) find(ctx context.Context, namespace, index, value string) []ctrl.Request {
	return kit.Requests(ctx, r.Client, &v1beta1.VirtualMachineSnapshotContentList{}, client.InNamespace(namespace),
		client.MatchingFields{index: value})
}

// freezeChanged passes the updates of a VMI that report the progress of a freeze.
var freezeChanged = kit.Updates(func(before, after *v1.VirtualMachineInstance) bool {
	return before.IsFinal() != after.IsFinal() ||
		!equality.Semantic.DeepEqual(before.Status.SnapshotFreeze, after.Status.SnapshotFreeze) ||
		!equality.Semantic.DeepEqual(before.Status.SnapshotFreezeRecord, after.Status.SnapshotFreezeRecord)
})

// Reconcile reconciles one content; see run for the order.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	s := &scope{Reconciler: r, now: kit.Now(r.Clock)}
	err := kit.Run(ctx, r.Client, request.NamespacedName, &s.content, s.run)
	return outcome.Result(ctx, err, s.requeueAfter)
}
