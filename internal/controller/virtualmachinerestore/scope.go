// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtualmachinerestore restores VMs from snapshots. What a restore does next is decided by package
// internal/snapshot/restore; this package reads what the decision depends on, and applies it. Run has the order.
package virtualmachinerestore

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/volumesnapshot"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/snapshot/restore"
)

// actionRestore is the action of a restore's events.
const actionRestore = "Restore"

// recheck is the delay after which a restore that has changed objects is reconciled again: ControllerRevisions are not watched.
const recheck = time.Second

// Scope is one reconciliation of one restore.
type Scope struct {
	// Client reads from the cache and writes to the API server. APIReader reads from the API server.
	Client    client.Client
	APIReader client.Reader
	// Recorder records events, each after the write that it reports.
	Recorder events.EventRecorder
	// DataVolumes reads the importer's DataVolumes.
	DataVolumes DataVolumes
	// VolumeSnapshots reads VolumeSnapshots.
	VolumeSnapshots volumesnapshot.Reader
	// Now is the time of the reconciliation.
	Now time.Time

	// Restore is the restore as read. Each write refreshes it.
	Restore *v1beta1.VirtualMachineRestore
	// RequeueAfter is when to reconcile again even if nothing changes, or 0.
	RequeueAfter time.Duration

	// patches applies the patches of restores.
	patches *restore.Patches
	// target is the VM that the restore names, and vmi is its VMI. Nil if they do not exist.
	target *v1.VirtualMachine
	vmi    *v1.VirtualMachineInstance
	// failed are DataVolumes that could not be created.
	failed []failedDataVolume
}

// Run reconciles the restore. The numbered comments give the reasons for the order.
func Run(ctx context.Context, s *Scope) error {
	if s.Restore.DeletionTimestamp != nil {
		return release(ctx, s)
	}
	if restore.Finished(s.Restore.Status) {
		return nil
	}
	if err := s.readTarget(ctx, s.Client); err != nil {
		return err
	}
	// 1. The finalizer is added before the target is locked. The owner is added before any other change, so that the restore never
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
	s.RequeueAfter = step.RequeueAfter
	if changed && s.RequeueAfter == 0 {
		s.RequeueAfter = recheck
	}
	// 2. The status is written last, once, even if the changes could not be applied. The objects themselves show the changes.
	return writeStatus(ctx, s, &step)
}

// protect adds the finalizer, and the target as the owner if the restore has none.
func protect(ctx context.Context, s *Scope) error {
	return kit.Patch(ctx, s.Client, &s.Restore, func(vmRestore *v1beta1.VirtualMachineRestore) {
		if s.target != nil && len(vmRestore.OwnerReferences) == 0 {
			vmRestore.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(s.target, v1.VirtualMachineGroupVersionKind)}
		}
		controllerutil.AddFinalizer(vmRestore, snapshot.VirtualMachineRestoreFinalizer)
	})
}

// release unlocks the target of a restore that is being deleted, and removes the finalizer. What has been restored stays.
func release(ctx context.Context, s *Scope) error {
	if !s.hasFinalizer() {
		return nil
	}
	// The cache may be stale and not show the lock.
	if err := s.readTarget(ctx, s.APIReader); err != nil {
		return err
	}
	step := restore.Released(restore.Observed{Now: s.Now, Restore: s.Restore, Target: s.target})
	if step.Unlock {
		if err := client.IgnoreNotFound(unlock(ctx, s)); err != nil {
			return err
		}
	}
	if err := writeStatus(ctx, s, &step); err != nil {
		return err
	}
	return client.IgnoreNotFound(kit.Patch(ctx, s.Client, &s.Restore, func(vmRestore *v1beta1.VirtualMachineRestore) {
		controllerutil.RemoveFinalizer(vmRestore, snapshot.VirtualMachineRestoreFinalizer)
	}))
}

func (s *Scope) hasFinalizer() bool {
	return controllerutil.ContainsFinalizer(s.Restore, snapshot.VirtualMachineRestoreFinalizer)
}

// writeStatus writes the status if it changed, and then records the event about the change.
func writeStatus(ctx context.Context, s *Scope, step *restore.Step) error {
	return client.IgnoreNotFound(kit.WriteStatus(ctx, s.Client, &s.Restore, func(r *v1beta1.VirtualMachineRestore) { r.Status = step.Status },
		func(*v1beta1.VirtualMachineRestore) {
			if e := step.Event; e != nil {
				s.Recorder.Eventf(s.Restore, nil, e.Type, e.Reason, actionRestore, "%s", e.Note)
			}
			s.recordFailedDataVolumes()
		}))
}
