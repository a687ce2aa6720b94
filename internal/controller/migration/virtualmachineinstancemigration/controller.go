// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/outcome"
)

// migrationWorkers is how many migrations are reconciled at the same time. KubeVirt's value.
const migrationWorkers = 3

// Reconciler creates the target's Pod of a migration, assigns it to the agents, and reports how the migration ends.
type Reconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Recorder records events.
	Recorder events.EventRecorder
	// Config is the cluster's configuration.
	Config kit.ConfigFeed
	// Clock gives the time; nil means the system's clock.
	Clock clock.PassiveClock

	queue Queue
}

// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations/finalizers,verbs=update
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=patch
// +kubebuilder:rbac:groups=migrations.kubevirt.io,resources=migrationpolicies,verbs=list
// +kubebuilder:rbac:groups=core,resources=pods,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=core,resources=namespaces,verbs=get
// +kubebuilder:rbac:groups=core,resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=core,resources=resourcequotas,verbs=list;watch
// +kubebuilder:rbac:groups=k8s.cni.cncf.io,resources=network-attachment-definitions,verbs=get
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch

// SetupWithManager adds the reconciler to a manager. Its map functions and predicates are in watches.go.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := indexForMigrations(mgr.GetFieldIndexer()); err != nil {
		return err
	}
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachineinstancemigration").
		For(&v1.VirtualMachineInstanceMigration{}).
		Watches(&v1.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(r.waiting),
			builder.WithPredicates(FreesSlot)).
		Watches(&v1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(r.migrationsOfVMI)).
		Watches(&v1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(r.waiting),
			builder.WithPredicates(AgentSilent)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.migrationsOfPod)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.OfState)).
		WatchesMetadata(&corev1.ResourceQuota{}, handler.EnqueueRequestsFromMapFunc(r.rejected),
			builder.WithPredicates(mayGrow)).
		WatchesRawSource(kit.OnConfig(r.Config, 0, r.waiting)).
		WithOptions(kit.Fair(migrationWorkers)), r)
}

// Reconcile reconciles one migration. The phases and their order are in Run.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	migration, err := kit.Read(ctx, request.NamespacedName, &v1.VirtualMachineInstanceMigration{}, r.Client)
	switch {
	case err != nil:
		return outcome.Result(ctx, err)
	case migration == nil:
		return outcome.Result(ctx, RemoveOrphans(ctx, r.Client, r.APIReader, request.NamespacedName))
	}
	config := r.Config.Current()
	scope := &Scope{
		Client: r.Client, APIReader: r.APIReader, Recorder: r.Recorder, Now: kit.Now(r.Clock), Migration: migration,
		Config: config.Pods(), Migrations: &config.Migrations, Queue: &r.queue,
		AutoCPULimit: config.AutoCPULimitNamespaces,
		ReadNetworks: !config.IsEnabled(clusterconfig.GateExternalNetResources),
	}
	if err := scope.Load(ctx); err != nil {
		return ctrl.Result{}, err
	}
	err = Run(ctx, scope)
	return outcome.Result(ctx, err, scope.RequeueAfter)
}
