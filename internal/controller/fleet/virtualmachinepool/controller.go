// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"context"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// poolWorkers is how many pools are reconciled at the same time. KubeVirt's value.
const poolWorkers = 3

// Reconciler keeps the number of a pool's VMs at spec.replicas, and updates the VMs to its template.
type Reconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads from the API server, without the cache.
	APIReader client.Reader
	// Recorder records events.
	Recorder events.EventRecorder
	// Clock gives the time; nil means the system's clock.
	Clock clock.PassiveClock
}

// +kubebuilder:rbac:groups=pool.kubevirt.io,resources=virtualmachinepools,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=pool.kubevirt.io,resources=virtualmachinepools/status,verbs=patch
// +kubebuilder:rbac:groups=pool.kubevirt.io,resources=virtualmachinepools/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=list;watch;patch;delete
// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims,verbs=get;patch
// +kubebuilder:rbac:groups=cdi.kubevirt.io,resources=datavolumes,verbs=get;patch
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachinepool").
		For(&poolv1.VirtualMachinePool{}).
		Owns(&v1.VirtualMachine{}).
		Owns(&appsv1.ControllerRevision{}, builder.OnlyMetadata).
		Watches(&v1.VirtualMachine{}, handler.EnqueueRequestsFromMapFunc(detachedFrom)).
		Watches(&v1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(r.poolOfInstance),
			builder.WithPredicates(changesMember)).
		WithOptions(kit.Fair(poolWorkers)), r)
}

// detachedFrom returns the pool from which a VM was detached, as long as the VM has the finalizer of pools.
func detachedFrom(_ context.Context, object client.Object) []ctrl.Request {
	vm, ok := object.(*v1.VirtualMachine)
	if !ok || poolOf(vm) != nil || !hasFinalizer(vm) {
		return nil
	}
	name := formerPool(vm)
	if name == "" {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: vm.Namespace, Name: name}}}
}

// poolOfInstance returns the pool of a VMI's VM, which has the VMI's name.
func (r *Reconciler) poolOfInstance(ctx context.Context, vmi client.Object) []ctrl.Request {
	owner := metav1.GetControllerOf(vmi)
	if owner == nil || owner.Kind != v1.VirtualMachineGroupVersionKind.Kind {
		return nil
	}
	vm := &v1.VirtualMachine{}
	if err := r.Client.Get(ctx, client.ObjectKey{Namespace: vmi.GetNamespace(), Name: owner.Name}, vm); err != nil {
		return nil // the VM was deleted, or the cache does not have it yet and its event will follow
	}
	if pool := poolOf(vm); pool != nil {
		return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: vm.Namespace, Name: pool.Name}}}
	}
	return nil
}

// changesMember accepts only updates of those fields of a VMI on which a plan depends. Agents update many others.
var changesMember = kit.Updates(func(before, after *v1.VirtualMachineInstance) bool {
	return before.Status.Phase != after.Status.Phase || !maps.Equal(before.Labels, after.Labels) ||
		!before.DeletionTimestamp.Equal(after.DeletionTimestamp) ||
		!equality.Semantic.DeepEqual(vmistatus.FindCondition(&before.Status, v1.VirtualMachineInstanceReady),
			vmistatus.FindCondition(&after.Status, v1.VirtualMachineInstanceReady))
})

// Reconcile reconciles one pool, or releases the VMs of one that no longer exists; see Run for the phases and their
// order.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	scope := &Scope{
		Client: r.Client, APIReader: r.APIReader, Recorder: r.Recorder, Now: kit.Now(r.Clock), Key: request.NamespacedName,
	}
	var err error
	if scope.Pool, err = kit.Read(ctx, request.NamespacedName, &poolv1.VirtualMachinePool{}, r.Client); err != nil {
		return outcome.Result(ctx, err)
	}
	if err := scope.Load(ctx); err != nil {
		return ctrl.Result{}, err
	}
	err = Run(ctx, scope)
	return outcome.Result(ctx, err, scope.After)
}
