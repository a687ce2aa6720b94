// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtualmachineclone clones VMs. What a clone does next is decided by package internal/decide/clone; this
// package reads what the decision depends on, and applies it. run has the order.
package virtualmachineclone

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/clone"
	"github.com/vireo-project/vireo/internal/outcome"
)

// actionClone is the action of a clone's events.
const actionClone = "Clone"

// scope is one reconciliation of one clone.
type scope struct {
	*Reconciler
	// clone is the clone as read. The write of its status refreshes it.
	clone *v1beta1.VirtualMachineClone
	// now is the time of the reconciliation.
	now time.Time
	// requeueAfter is when to reconcile again even if nothing changes, or 0.
	requeueAfter time.Duration
}

// run reconciles the clone. The numbered comment gives the reason for the order.
func (s *scope) run(ctx context.Context) error {
	if s.clone.DeletionTimestamp != nil {
		return nil // The garbage collector deletes the objects that the clone owns.
	}
	observed, err := s.observe(ctx)
	if err != nil {
		return err
	}
	step := clone.Next(observed)
	if err := s.apply(ctx, &step); err != nil {
		if outcome.Failure(err) == nil || ctx.Err() != nil {
			return err
		}
		log.FromContext(ctx).Error(err, "Cannot apply the next step of a clone")
		step = clone.Failed(observed, step, err)
	}
	// 1. The status is written last, once. It names the snapshot and the restore only once they exist. So if the status
	//    names an
	// object that does not exist, a client has deleted it.
	s.requeueAfter = step.RequeueAfter
	return s.writeStatus(ctx, &step)
}

// apply applies the changes of a step and returns the first error. An object that exists already, or is deleted
// already, is no error.
func (s *scope) apply(ctx context.Context, step *clone.Step) error {
	for _, object := range step.Create {
		if err := s.Client.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	for _, object := range step.Delete {
		if err := kit.Delete(ctx, s.Client, object); err != nil {
			return err
		}
	}
	return nil
}

// writeStatus writes the status if it changed, and then records the events about the change.
func (s *scope) writeStatus(ctx context.Context, step *clone.Step) error {
	return client.IgnoreNotFound(
		kit.WriteStatus(ctx, s.Client, &s.clone, func(c *v1beta1.VirtualMachineClone) { c.Status = *step.Status },
			func(*v1beta1.VirtualMachineClone) {
				for _, e := range step.Events {
					s.Recorder.Eventf(s.clone, nil, e.Type, e.Reason, actionClone, "%s", e.Note)
				}
			}))
}
