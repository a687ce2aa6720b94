// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package evacuation

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/events"
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

// Reconciler migrates the guests that have to be evacuated from their node. It reconciles one node at a time, because
// the cluster's limit applies to all nodes together.
type Reconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Recorder records events.
	Recorder events.EventRecorder
	// Config contains the limits, the drain taint and the cluster's eviction strategy.
	Config kit.ConfigFeed
}

// +kubebuilder:rbac:groups=core,resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=core,resources=pods,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch

// SetupWithManager adds the reconciler to a manager, after that of VMIs, whose index by node it uses.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("evacuation").
		For(&corev1.Node{}, builder.WithPredicates(drainChanges)).
		Watches(&v1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(nodeOfGuest),
			builder.WithPredicates(evacuationChanges)).
		Watches(&v1.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(r.nodeOfMigration)).
		WatchesRawSource(kit.OnSettings(r.Config, settingsOf, func(ctx context.Context) []ctrl.Request {
			return kit.Requests(ctx, r.Client, &corev1.NodeList{}, client.UnsafeDisableDeepCopy)
		})), r)
}

// drainChanges accepts only the changes of a Node that a drain makes. Kubelets write a Node's status often.
var drainChanges = kit.Updates(func(before, after *corev1.Node) bool {
	return before.Spec.Unschedulable != after.Spec.Unschedulable ||
		!equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints)
})

// evacuationChanges accepts only the changes of a VMI that determine whether its guest is evacuated.
var evacuationChanges = kit.Updates(func(before, after *v1.VirtualMachineInstance) bool {
	isMigratable := func(vmi *v1.VirtualMachineInstance) bool {
		return vmistatus.IsConditionTrue(&vmi.Status, v1.VirtualMachineInstanceIsMigratable)
	}
	return before.Status.NodeName != after.Status.NodeName ||
		before.Status.EvacuationNodeName != after.Status.EvacuationNodeName ||
		before.IsFinal() != after.IsFinal() || isMigratable(before) != isMigratable(after)
})

func nodeOfGuest(_ context.Context, object client.Object) []ctrl.Request {
	vmi, ok := object.(*v1.VirtualMachineInstance)
	if !ok || vmi.Status.NodeName == "" {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{Name: vmi.Status.NodeName}}}
}

// nodeOfMigration returns the source node of a migration.
func (r *Reconciler) nodeOfMigration(ctx context.Context, object client.Object) []ctrl.Request {
	m, ok := object.(*v1.VirtualMachineInstanceMigration)
	if !ok {
		return nil
	}
	if node := m.Annotations[v1.EvacuationMigrationAnnotation]; node != "" {
		return []ctrl.Request{{NamespacedName: client.ObjectKey{Name: node}}}
	}
	vmi := &v1.VirtualMachineInstance{}
	key := client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}
	if err := r.Client.Get(ctx, key, vmi); err != nil {
		if client.IgnoreNotFound(err) != nil {
			log.FromContext(ctx).Error(err, "Cannot find the node of a migration", "virtualMachineInstanceMigration", m.Name)
		}
		return nil
	}
	return nodeOfGuest(ctx, vmi)
}

// Reconcile reconciles one node. Decide makes the decisions.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, request.NamespacedName, node); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	instances := &v1.VirtualMachineInstanceList{}
	if err := r.Client.List(ctx, instances, client.MatchingFields{kit.NodeIndex: node.Name}); err != nil {
		return ctrl.Result{}, fmt.Errorf("list VirtualMachineInstances of node %s: %w", node.Name, err)
	}
	if len(instances.Items) == 0 {
		return ctrl.Result{}, nil
	}
	migrations := &v1.VirtualMachineInstanceMigrationList{}
	if err := r.Client.List(ctx, migrations, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("list VirtualMachineInstanceMigrations: %w", err)
	}
	config := r.Config.Current()
	after, err := Run(ctx, &Scope{
		Client: r.Client, APIReader: r.APIReader, Recorder: r.Recorder,
		Settings: settingsOf(&config),
		Node:     node, Instances: instances.Items, Migrations: migrations.Items,
	})
	return outcome.Result(ctx, err, after)
}
