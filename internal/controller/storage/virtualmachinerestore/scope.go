// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtualmachinerestore restores VMs from snapshots. What a restore does next is decided by package
// internal/decide/restore; this package reads what the decision depends on, and applies it. run has the order.
package virtualmachinerestore

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/restore"
	"github.com/vireo-project/vireo/internal/outcome"
)

// actionRestore is the action of a restore's events.
const actionRestore = "Restore"

// recheck is the delay after which a restore that has changed objects is reconciled again: ControllerRevisions are not
// watched.
const recheck = time.Second

// scope is one reconciliation of one restore.
type scope struct {
	*Reconciler
	// restore is the restore as read. Each write refreshes it.
	restore *v1beta1.VirtualMachineRestore
	// now is the time of the reconciliation.
	now time.Time
	// requeueAfter is when to reconcile again even if nothing changes, or 0.
	requeueAfter time.Duration
	// target is the VM that the restore names, and vmi is its VMI. Nil if they do not exist.
	target *v1.VirtualMachine
	vmi    *v1.VirtualMachineInstance
	// failed are DataVolumes that could not be created.
	failed []failedDataVolume
}

// run reconciles the restore. The numbered comments give the reasons for the order.
func (s *scope) run(ctx context.Context) error {
	if s.restore.DeletionTimestamp != nil {
		return release(ctx, s)
	}
	if restore.Finished(s.restore.Status) {
		return nil
	}
	if err := s.readTarget(ctx, s.Client); err != nil {
		return err
	}
	// 1. The finalizer is added before the target is locked. The owner is added before any other change, so that the
	//    restore never
	// recreates a VM that a user has deleted.
	if err := protect(ctx, s); err != nil {
		return err
	}
	observed, err := observe(ctx, s)
	if err != nil {
		return err
	}
	step := restore.Next(observed)
	changed, err := apply(ctx, s, &observed, &step)
	var refused *refusedError
	switch {
	case err == nil:
	case outcome.Failure(err) == nil, ctx.Err() != nil:
		return err
	case errors.As(err, &refused):
		step = restore.Refused(observed, err)
		if _, err := apply(ctx, s, &observed, &step); err != nil {
			return err
		}
	default:
		log.FromContext(ctx).Error(err, "Cannot apply the next step of a restore")
		step = restore.Failed(observed, err)
	}
	s.requeueAfter = step.RequeueAfter
	if changed && s.requeueAfter == 0 {
		s.requeueAfter = recheck
	}
	// 2. The status is written last, once, even if the changes could not be applied. The objects themselves show the
	//    changes.
	return writeStatus(ctx, s, &step)
}

// protect adds the finalizer, and the target as the owner if the restore has none.
func protect(ctx context.Context, s *scope) error {
	return kit.Patch(ctx, s.Client, &s.restore, func(vmRestore *v1beta1.VirtualMachineRestore) {
		if s.target != nil && len(vmRestore.OwnerReferences) == 0 {
			vmRestore.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(s.target,
				v1.VirtualMachineGroupVersionKind)}
		}
		controllerutil.AddFinalizer(vmRestore, snapshot.VirtualMachineRestoreFinalizer)
	})
}

// release unlocks the target of a restore that is being deleted, and removes the finalizer. What has been restored
// stays.
func release(ctx context.Context, s *scope) error {
	if !controllerutil.ContainsFinalizer(s.restore, snapshot.VirtualMachineRestoreFinalizer) {
		return nil
	}
	// The cache may be stale and not show the lock.
	if err := s.readTarget(ctx, s.APIReader); err != nil {
		return err
	}
	step := restore.Released(restore.Observed{Now: s.now, Restore: s.restore, Target: s.target})
	if step.Unlock {
		if err := client.IgnoreNotFound(unlock(ctx, s)); err != nil {
			return err
		}
	}
	if err := writeStatus(ctx, s, &step); err != nil {
		return err
	}
	return kit.RemoveFinalizer(ctx, s.Client, &s.restore, snapshot.VirtualMachineRestoreFinalizer)
}

// writeStatus writes the status if it changed, and then records the event about the change.
func writeStatus(ctx context.Context, s *scope, step *restore.Step) error {
	return client.IgnoreNotFound(
		kit.WriteStatus(ctx, s.Client, &s.restore, func(r *v1beta1.VirtualMachineRestore) { r.Status = step.Status },
			func(*v1beta1.VirtualMachineRestore) {
				if e := step.Event; e != nil {
					s.Recorder.Eventf(s.restore, nil, e.Type, e.Reason, actionRestore, "%s", e.Note)
				}
				s.recordFailedDataVolumes()
			}))
}
