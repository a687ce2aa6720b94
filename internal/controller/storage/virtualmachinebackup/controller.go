// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtualmachinebackup carries out VirtualMachineBackups: it attaches the claim, requests the freeze and the
// backup from the agent, and reports how it ended. Package internal/decide/backup/plan decides; this package reads what
// the decision depends on, and applies it.
package virtualmachinebackup

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/outcome"
)

// workers is how many backups are reconciled at the same time, KubeVirt's value. As many trackers are, and VMIs that
// backups have abandoned.
const workers = 3

// Pods reads the Pods of exporters and enqueues their backups.
type Pods interface {
	client.Reader
	// Source enqueues what users returns for a Pod that has changed.
	Source(users func(context.Context, *corev1.Pod) []ctrl.Request) source.Source
}

// Reconciler reconciles VirtualMachineBackups.
type Reconciler struct {
	// Client reads from the manager's cache.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// Pods are the Pods of exporters.
	Pods Pods
	// Recorder records events on backups.
	Recorder events.EventRecorder
	// Clock defaults to the system's.
	Clock clock.PassiveClock
}

// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackups/status,verbs=patch
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackuptrackers,verbs=get;list;watch
// +kubebuilder:rbac:groups=backup.kubevirt.io,resources=virtualmachinebackuptrackers/status,verbs=patch
// +kubebuilder:rbac:groups=export.kubevirt.io,resources=virtualmachineexports,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachines,verbs=list;watch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstances/status,verbs=patch
// +kubebuilder:rbac:groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=list;watch
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims,verbs=list;watch
// +kubebuilder:rbac:groups=core,resources=events,verbs=create;patch

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := indexBackups(mgr.GetFieldIndexer()); err != nil {
		return err
	}
	if err := (trackers{r}).setupWithManager(mgr); err != nil {
		return err
	}
	if err := (Abandoned{r}).setupWithManager(mgr); err != nil {
		return err
	}
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachinebackup").
		For(&v1alpha1.VirtualMachineBackup{}).
		Watches(&v1alpha1.VirtualMachineBackupTracker{}, handler.EnqueueRequestsFromMapFunc(r.ofTracker)).
		Watches(&v1.VirtualMachine{}, handler.EnqueueRequestsFromMapFunc(r.ofSource), builder.WithPredicates(vmComesOrGoes)).
		Watches(&v1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(r.ofGuest),
			builder.WithPredicates(backupChanged)).
		Watches(&v1.VirtualMachineInstanceMigration{}, handler.EnqueueRequestsFromMapFunc(r.ofMigration),
			builder.WithPredicates(migrationMatters)).
		Watches(&corev1.PersistentVolumeClaim{}, handler.EnqueueRequestsFromMapFunc(r.ofClaim),
			builder.WithPredicates(claimComesOrGoes)).
		Watches(&exportv1.VirtualMachineExport{}, handler.EnqueueRequestsFromMapFunc(ofExport)).
		WatchesRawSource(r.Pods.Source(ofExporter)).
		WithOptions(kit.Fair(workers)), r)
}

// Reconcile reconciles one backup; see run for the order.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	s := &scope{Reconciler: r, now: kit.Now(r.Clock)}
	err := kit.Run(ctx, r.Client, request.NamespacedName, &s.backup, s.run)
	return outcome.Result(ctx, err, s.requeueAfter)
}
