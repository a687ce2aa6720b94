// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineclone

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/vireo-project/vireo/api/clone/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/outcome"
)

// cloneWorkers is how many clones are reconciled at the same time.
const cloneWorkers = 3

// Reconciler clones VMs.
type Reconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Recorder records events.
	Recorder events.EventRecorder
	// Clock gives the time; nil means the system's clock.
	Clock clock.PassiveClock
}

// +kubebuilder:rbac:groups=clone.kubevirt.io,resources=virtualmachineclones,verbs=list;watch;delete
// +kubebuilder:rbac:groups=clone.kubevirt.io,resources=virtualmachineclones/status,verbs=patch
// +kubebuilder:rbac:groups=clone.kubevirt.io,resources=virtualmachineclones/finalizers,verbs=update
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshots;virtualmachinerestores,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=snapshot.kubevirt.io,resources=virtualmachinesnapshotcontents,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims,verbs=get;list;watch
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := kit.AddIndexes(mgr.GetFieldIndexer(), awaitedIndex, targetIndex, restoreIndex, claimIndex); err != nil {
		return err
	}
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachineclone").
		For(&v1beta1.VirtualMachineClone{}).
		Watches(&snapshotv1beta1.VirtualMachineSnapshot{}, handler.EnqueueRequestsFromMapFunc(r.clonesOfSnapshot)).
		Watches(&snapshotv1beta1.VirtualMachineRestore{}, handler.EnqueueRequestsFromMapFunc(r.clonesOfRestore)).
		Watches(&v1.VirtualMachine{}, handler.EnqueueRequestsFromMapFunc(r.clonesOfVM)).
		Watches(&v1.VirtualMachine{}, handler.EnqueueRequestsFromMapFunc(r.clonesToVM),
			builder.WithPredicates(kit.Deletions)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.clonesOfClaim)).
		WithOptions(kit.Fair(cloneWorkers)), r)
}

// Reconcile reconciles one clone. See run for the order.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	s := &scope{Reconciler: r, now: kit.Now(r.Clock)}
	err := kit.Run(ctx, r.Client, request.NamespacedName, &s.clone, s.run)
	return outcome.Result(ctx, err, s.requeueAfter)
}
