// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshot

import (
	"context"

	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/claimusers"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/internal/outcome"
)

// workers is how many snapshots are reconciled at the same time. KubeVirt's value.
const workers = 3

// Reconciler locks the VM of a snapshot, stores it in a content, and unlocks it when the snapshot has been taken.
type Reconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Recorder records events on snapshots.
	Recorder events.EventRecorder
	// VolumeSnapshots reads the classes of VolumeSnapshots.
	VolumeSnapshots volumesnapshot.Reader
	// DataVolumes reads those of the importer, where the cluster has one.
	DataVolumes datavolume.Reader
	// Clock defaults to the system's.
	Clock clock.PassiveClock

	// pods are the recent scans for other Pods that use claims.
	pods claimusers.Recent
}

// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshots,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshots/status,verbs=patch
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshots/finalizers,verbs=update
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshotcontents,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups=core,resources=pods,verbs=list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list;watch
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshotclasses,verbs=list;watch
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=storageprofiles,verbs=list;watch
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=get;list;watch;create
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := indexSnapshots(mgr.GetFieldIndexer()); err != nil {
		return err
	}
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachinesnapshot").
		For(&v1beta1.VirtualMachineSnapshot{}).
		Watches(&v1beta1.VirtualMachineSnapshotContent{}, handler.EnqueueRequestsFromMapFunc(snapshotOf)).
		Watches(&v1.VirtualMachine{}, handler.EnqueueRequestsFromMapFunc(r.snapshotsOfVM)).
		Watches(&v1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(r.unfinishedOf),
			builder.WithPredicates(guestChanged)).
		WithOptions(kit.Fair(workers)), r)
}

// Reconcile reconciles one snapshot; see run for the order.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	if err := r.unlockAbandoned(ctx, request.NamespacedName); err != nil {
		return outcome.Result(ctx, err)
	}
	s := &scope{Reconciler: r, now: kit.Now(r.Clock)}
	err := kit.Run(ctx, r.Client, request.NamespacedName, &s.snapshot, s.run)
	return outcome.Result(ctx, err, s.requeueAfter)
}
