// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinerestore

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/internal/decide/restore"
	"github.com/vireo-project/vireo/internal/outcome"
)

// restoreWorkers is how many restores are reconciled at the same time.
const restoreWorkers = 3

// DataVolumes reads the DataVolumes of the importer and enqueues the restores that they concern. datavolume.Store is
// one.
type DataVolumes interface {
	// List returns the DataVolumes of a namespace, or datavolume.ErrNotInstalled.
	List(ctx context.Context, namespace string) ([]cdi.DataVolume, error)
	// Source enqueues what users returns for a change.
	Source(users func(context.Context, datavolume.Change) []ctrl.Request) *datavolume.Source
}

// Reconciler restores VMs from snapshots.
type Reconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Recorder records events.
	Recorder events.EventRecorder
	// DataVolumes are those of the importer, where the cluster has one.
	DataVolumes DataVolumes
	// VolumeSnapshots reads VolumeSnapshots from a cache, where the cluster has them.
	VolumeSnapshots volumesnapshot.Reader
	// Clock gives the time; nil means the system's clock.
	Clock clock.PassiveClock

	patches restore.Patches
}

// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinerestores,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinerestores/status,verbs=patch
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshots;virtualmachinesnapshotcontents,verbs=list;watch
// +kubebuilder:rbac:groups=snapshot.storage.k8s.io,resources=volumesnapshots,verbs=list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=list;watch
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := kit.AddIndexes(mgr.GetFieldIndexer(), targetIndex, awaitedIndex, underwayIndex, lockIndex); err != nil {
		return err
	}
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachinerestore").
		For(&v1beta1.VirtualMachineRestore{}).
		Watches(&v1.VirtualMachine{}, handler.EnqueueRequestsFromMapFunc(r.restoresOfVM)).
		Watches(&v1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(r.restoresOfTarget),
			builder.WithPredicates(kit.CreationsAndDeletions)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.restoresOfClaim)).
		Watches(&v1beta1.VirtualMachineSnapshot{}, handler.EnqueueRequestsFromMapFunc(r.restoresOfSnapshot)).
		Watches(&v1beta1.VirtualMachineSnapshotContent{}, handler.EnqueueRequestsFromMapFunc(r.restoresOfContent)).
		WatchesRawSource(r.DataVolumes.Source(r.restoresOfDataVolume)).
		WithOptions(kit.Fair(restoreWorkers)), r)
}

// Reconcile reconciles one restore. See run for the phases.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	if err := r.unlockAbandoned(ctx, request.NamespacedName); err != nil {
		return outcome.Result(ctx, err)
	}
	s := &scope{Reconciler: r, now: kit.Now(r.Clock)}
	err := kit.Run(ctx, r.Client, request.NamespacedName, &s.restore, s.run)
	return outcome.Result(ctx, err, s.requeueAfter)
}
