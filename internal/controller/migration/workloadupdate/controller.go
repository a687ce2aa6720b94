// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package workloadupdate

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Delays after a change, because each reconciliation reconciles all guests, and changes often come in bursts. The usage
// of a quota changes with every Pod of its namespace, and affects only a condition.
const (
	settle       = time.Second
	quotasSettle = 15 * time.Second
)

// Reconciler moves running guests to the configured launcher, as spec.workloadUpdateStrategy of the KubeVirt object
// specifies.
type Reconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Recorder records events.
	Recorder events.EventRecorder
	// Config contains the launcher image, the limits and the cluster's eviction strategy.
	Config kit.ConfigFeed
	// Namespace is the install namespace, which contains the KubeVirt object.
	Namespace string
	// DeploymentID identifies what this build installs for a KubeVirt object. It is KubeVirtReconciler.DeploymentID.
	DeploymentID func(*v1.KubeVirt) (string, error)
	// Clock gives the time; nil means the system's clock.
	Clock clock.PassiveClock

	lastCheck Check
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts,verbs=list;watch;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=kubevirts/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=core,resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups=core,resources=pods/eviction,verbs=create
// +kubebuilder:rbac:groups=core,resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=core,resources=resourcequotas,verbs=list;watch
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("workloadupdate").
		For(&v1.KubeVirt{}).
		Watches(&v1.VirtualMachineInstance{}, r.after(settle), builder.WithPredicates(workloadChanges)).
		Watches(&v1.VirtualMachineInstanceMigration{}, r.after(settle), builder.WithPredicates(migrationChanges)).
		Watches(&corev1.Node{}, r.after(settle), builder.WithPredicates(nodeChanges)).
		Watches(&corev1.ResourceQuota{}, r.after(quotasSettle), builder.WithPredicates(quotaChanges)).
		WatchesRawSource(kit.OnConfig(r.Config, settle, r.all)), r)
}

// after enqueues the KubeVirt object after a delay, once for all changes in that time.
func (r *Reconciler) after(delay time.Duration) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	enqueue := func(ctx context.Context, q queue) {
		for _, request := range r.all(ctx, nil) {
			q.AddAfter(request, delay)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, _ event.CreateEvent, q queue) { enqueue(ctx, q) },
		UpdateFunc: func(ctx context.Context, _ event.UpdateEvent, q queue) { enqueue(ctx, q) },
		DeleteFunc: func(ctx context.Context, _ event.DeleteEvent, q queue) { enqueue(ctx, q) },
	}
}

func (r *Reconciler) all(ctx context.Context, _ client.Object) []ctrl.Request {
	return kit.Requests(ctx, r.Client, &v1.KubeVirtList{}, client.InNamespace(r.Namespace))
}

// workloadChanges accepts only the changes of a VMI that determine whether and how its guest is updated.
var workloadChanges = kit.Updates(func(before, after *v1.VirtualMachineInstance) bool {
	_, labeled := before.Labels[v1.OutdatedLauncherImageLabel]
	_, stillLabeled := after.Labels[v1.OutdatedLauncherImageLabel]
	a, b := &before.Status, &after.Status
	for _, kind := range []v1.VirtualMachineInstanceConditionType{
		v1.VirtualMachineInstanceIsMigratable, v1.VirtualMachineInstanceMigrationRequired,
		v1.VirtualMachineInstanceVolumesChange,
	} {
		if !sameCondition(vmistatus.FindCondition(a, kind), vmistatus.FindCondition(b, kind)) {
			return true
		}
	}
	return labeled != stillLabeled || a.Phase != b.Phase ||
		a.LauncherContainerImageVersion != b.LauncherContainerImageVersion ||
		a.NodeName != b.NodeName || vmistatus.Lost(a) != vmistatus.Lost(b) ||
		vmistatus.Migrating(a) != vmistatus.Migrating(b) ||
		(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) ||
		a.EvacuationNodeName != b.EvacuationNodeName || !equality.Semantic.DeepEqual(before.Annotations, after.Annotations)
})

func sameCondition(a, b *v1.VirtualMachineInstanceCondition) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// migrationChanges accepts the creation, the start, the end and the deletion of migrations.
var migrationChanges = kit.Updates(func(before, after *v1.VirtualMachineInstanceMigration) bool {
	return before.Status.Phase != after.Status.Phase || UsesSlot(before) != UsesSlot(after)
})

// nodeChanges accepts only the changes of a Node that determine which guests it can run. Heartbeats, which are
// annotations, do not.
var nodeChanges = kit.Updates(func(before, after *corev1.Node) bool {
	return before.Spec.Unschedulable != after.Spec.Unschedulable ||
		!equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints) ||
		!equality.Semantic.DeepEqual(before.Labels, after.Labels)
})

// quotaChanges accepts changes of a quota's limits and of its usage, which changes with every Pod of its namespace.
// Quotas have no generation.
var quotaChanges = kit.Updates(func(before, after *corev1.ResourceQuota) bool {
	return !equality.Semantic.DeepEqual(before.Spec, after.Spec) ||
		!equality.Semantic.DeepEqual(before.Status, after.Status)
})

// Reconcile reconciles all guests. Decide makes the decisions.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	all := &v1.KubeVirtList{}
	if err := r.Client.List(ctx, all, client.InNamespace(r.Namespace)); err != nil {
		return ctrl.Result{}, fmt.Errorf("list KubeVirt objects: %w", err)
	}
	active := clusterconfig.Active(all.Items)
	if active == nil || active.DeletionTimestamp != nil || client.ObjectKeyFromObject(active) != request.NamespacedName {
		return ctrl.Result{}, nil // Another object is the active one, or there is none.
	}
	scope := &Scope{
		Client: r.Client, APIReader: r.APIReader, Recorder: r.Recorder, Now: kit.Now(r.Clock), Config: r.Config.Current(),
		KubeVirt: active.DeepCopy(), DeploymentID: r.DeploymentID, LastCheck: &r.lastCheck,
	}
	if err := r.load(ctx, scope); err != nil {
		return ctrl.Result{}, err
	}
	requeueAfter, err := Run(ctx, scope)
	return outcome.Result(ctx, err, requeueAfter)
}

// load lists the objects in the cache. They are not changed, so they need not be copied.
func (r *Reconciler) load(ctx context.Context, s *Scope) error {
	instances, pods := &v1.VirtualMachineInstanceList{}, &corev1.PodList{}
	migrations, nodes, quotas := &v1.VirtualMachineInstanceMigrationList{}, &corev1.NodeList{}, &corev1.ResourceQuotaList{}
	for _, list := range []client.ObjectList{instances, pods, migrations, nodes, quotas} {
		options := []client.ListOption{client.UnsafeDisableDeepCopy}
		if list == pods {
			options = append(options, client.MatchingLabels{v1.AppLabel: launcherpod.AppLabelValue})
		}
		if err := r.Client.List(ctx, list, options...); err != nil {
			return fmt.Errorf("list %T: %w", list, err)
		}
	}
	s.Instances, s.Pods, s.Migrations = instances.Items, pods.Items, migrations.Items
	s.Nodes, s.Quotas = nodes.Items, quotas.Items
	return nil
}
