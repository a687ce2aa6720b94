// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinebackup

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/vireo-project/vireo/api/backup"
	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/backup/plan"
	"github.com/vireo-project/vireo/internal/outcome"
)

// trackers removes checkpoints from the status of trackers that have ended with an earlier guest.
type trackers struct{ *Reconciler }

func (t trackers) setupWithManager(mgr ctrl.Manager) error {
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("virtualmachinebackuptracker").
		For(&v1alpha1.VirtualMachineBackupTracker{}).
		Watches(&v1.VirtualMachineInstance{}, handler.EnqueueRequestsFromMapFunc(t.trackersOf),
			builder.WithPredicates(guestStarts)).
		WithOptions(kit.Fair(workers)), t)
}

// Reconcile reconciles one tracker.
func (t trackers) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	tracker := &v1alpha1.VirtualMachineBackupTracker{}
	if err := t.Client.Get(ctx, request.NamespacedName, tracker); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	key := client.ObjectKey{Namespace: tracker.Namespace, Name: tracker.Spec.Source.Name}
	vmi, err := kit.Read(ctx, key, &v1.VirtualMachineInstance{}, t.Client)
	if err != nil || vmi == nil {
		return outcome.Result(ctx, err)
	}
	lost := plan.LostCheckpoint(tracker, vmi)
	if lost == "" {
		return ctrl.Result{}, nil
	}
	err = kit.WriteStatus(ctx, t.Client, &tracker,
		func(t *v1alpha1.VirtualMachineBackupTracker) { t.Status.LatestCheckpoint = nil },
		func(*v1alpha1.VirtualMachineBackupTracker) {
			// It begins and ends as KubeVirt's does.
			t.Recorder.Eventf(tracker, nil, corev1.EventTypeWarning, backup.CheckpointLostEvent, actionBackup,
				"Failed to redefine checkpoint %s: it ended when the guest stopped. Checkpoint cleared, next backup will be full.",
				lost)
		})
	return outcome.Result(ctx, client.IgnoreNotFound(err))
}

// trackersOf returns the trackers of the VM of a VMI.
func (t trackers) trackersOf(ctx context.Context, vmi client.Object) []ctrl.Request {
	return kit.Requests(ctx, t.Client, &v1alpha1.VirtualMachineBackupTrackerList{}, client.InNamespace(vmi.GetNamespace()),
		client.MatchingFields{trackerIndex: vmi.GetName()})
}

// guestStarts passes VMIs that are new to the cache, or begin to run.
var guestStarts = kit.ExceptDeletions(kit.Updates(func(before, after *v1.VirtualMachineInstance) bool {
	return before.Status.Phase != after.Status.Phase
}))
