// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset

import (
	"context"
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// replicaSetWorkers is how many sets are reconciled at the same time. KubeVirt's value.
const replicaSetWorkers = 3

// Reconciler keeps the number of VMIs at a set's spec.replicas.
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

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancereplicasets,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancereplicasets/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancereplicasets/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachineinstancereplicaset").
		For(&v1.VirtualMachineInstanceReplicaSet{}).
		Owns(&v1.VirtualMachineInstance{}, builder.WithPredicates(changesReplicas)).
		Watches(&v1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(r.adopters),
			builder.WithPredicates(changesReplicas)).
		WithOptions(kit.Fair(replicaSetWorkers)), r)
}

// changesReplicas accepts only updates of those fields of a VMI that determine whether a set counts it. Agents update
// many others.
var changesReplicas = kit.Updates(func(before, after *v1.VirtualMachineInstance) bool {
	readyBefore := vmistatus.FindCondition(&before.Status, v1.VirtualMachineInstanceReady)
	readyAfter := vmistatus.FindCondition(&after.Status, v1.VirtualMachineInstanceReady)
	return before.Status.Phase != after.Status.Phase || !equality.Semantic.DeepEqual(readyBefore, readyAfter) ||
		!before.DeletionTimestamp.Equal(after.DeletionTimestamp) || !maps.Equal(before.Labels, after.Labels) ||
		!equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences)
})

// adopters returns the sets that may adopt a VMI without controller.
func (r *Reconciler) adopters(ctx context.Context, vmi client.Object) []ctrl.Request {
	if metav1.GetControllerOf(vmi) != nil || len(vmi.GetLabels()) == 0 {
		return nil
	}
	sets := &v1.VirtualMachineInstanceReplicaSetList{}
	if err := r.Client.List(ctx, sets, client.InNamespace(vmi.GetNamespace())); err != nil {
		log.FromContext(ctx).Error(err, "Cannot find the replica sets that may adopt a VMI", "virtualMachineInstance",
			vmi.GetName())
		return nil
	}
	var requests []ctrl.Request
	for i := range sets.Items {
		selector, err := metav1.LabelSelectorAsSelector(sets.Items[i].Spec.Selector)
		if err == nil && selector.Matches(labels.Set(vmi.GetLabels())) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&sets.Items[i])})
		}
	}
	return requests
}

// Reconcile reconciles one set; see Run for the phases and their order.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	set, err := kit.Read(ctx, request.NamespacedName, &v1.VirtualMachineInstanceReplicaSet{}, r.Client)
	if set == nil || err != nil {
		return outcome.Result(ctx, err) // The garbage collector deletes the VMIs of one that is gone.
	}
	scope := &Scope{
		Client: r.Client, APIReader: r.APIReader, Recorder: r.Recorder, Now: kit.Now(r.Clock), Set: set,
	}
	if err := scope.Load(ctx); err != nil {
		return ctrl.Result{}, err
	}
	return outcome.Result(ctx, Run(ctx, scope))
}
