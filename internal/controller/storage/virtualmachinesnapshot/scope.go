// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtualmachinesnapshot locks the VM of a VirtualMachineSnapshot, stores it in a
// VirtualMachineSnapshotContent, and unlocks it when the snapshot has been taken, has failed or is deleted. What is in
// a snapshot, and its status, is decided by package capture. The reconciler of contents takes the snapshots of the
// disks.
package virtualmachinesnapshot

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// lockRetry is the delay before another attempt to lock a VM, because not everything that may prevent it is watched.
// KubeVirt's value. The delay increases up to lockRetryMax the longer a snapshot has been waiting.
const (
	lockRetry    = 5 * time.Second
	lockRetryMax = time.Minute
)

// scope is one reconciliation of one snapshot.
type scope struct {
	*Reconciler
	// now is the time of the reconciliation.
	now time.Time
	// snapshot is the snapshot as read. Writes of metadata refresh it; its status changes only when the status is written.
	snapshot *v1beta1.VirtualMachineSnapshot
	// vmi is the VM's VMI, or nil. A VMI of the same name that the VM does not control does not count: any user may have
	// created it.
	vmi *v1.VirtualMachineInstance
	// observed is what was observed, updated by each write.
	observed capture.Observed
	// requeueAfter is when to reconcile again even if nothing changes, or 0.
	requeueAfter time.Duration
}

// run reconciles the snapshot.
func (s *scope) run(ctx context.Context) error {
	if err := s.load(ctx); err != nil {
		return err
	}
	err := s.act(ctx)
	if err != nil && outcome.Failure(err) == nil {
		// The observed state has changed, such as that the content is complete; or it is not known yet whether Pods use the
		// claims.
		return err
	}
	// 1. The status is written even if a step failed: the next one may never succeed.
	if statusErr := s.writeStatus(ctx); statusErr != nil {
		return errors.Join(err, statusErr)
	}
	if err != nil {
		return err
	}
	// 2. The finalizer is removed last.
	return s.removeFinalizer(ctx)
}

// act takes the next step.
func (s *scope) act(ctx context.Context) error {
	switch s.phase() {
	case v1beta1.Succeeded:
		return s.complete(ctx)
	case v1beta1.Failed, v1beta1.Deleting:
		return s.abandon(ctx)
	default:
		return s.take(ctx)
	}
}

// phase returns the phase that follows from what was observed.
func (s *scope) phase() v1beta1.VirtualMachineSnapshotPhase {
	return capture.Status(s.snapshot, s.observed).Phase
}

// load reads the VM, its VMI and the content.
func (s *scope) load(ctx context.Context) error {
	s.observed.Now = s.now
	var err error
	if s.observed.Source.VM, err = kit.Read(ctx, s.sourceKey(), &v1.VirtualMachine{}, s.Client); err != nil {
		return err
	}
	if err := s.loadVMI(ctx, s.Client); err != nil {
		return err
	}
	return s.loadContent(ctx, s.Client)
}

// loadVMI reads the VM's VMI. The snapshot waits for a VMI that the VM has not adopted yet, because its launcher Pod
// uses the claims.
func (s *scope) loadVMI(ctx context.Context, from client.Reader) error {
	s.vmi = nil
	found, err := kit.Read(ctx, s.sourceKey(), &v1.VirtualMachineInstance{}, from)
	if err != nil {
		return err
	}
	if vm := s.observed.Source.VM; vm != nil && found != nil && metav1.IsControlledBy(found, vm) {
		s.vmi = found
	}
	return nil
}

func (s *scope) sourceKey() client.ObjectKey {
	return client.ObjectKey{Namespace: s.snapshot.Namespace, Name: s.snapshot.Spec.Source.Name}
}

func (s *scope) loadContent(ctx context.Context, from client.Reader) error {
	key := client.ObjectKey{Namespace: s.snapshot.Namespace, Name: capture.ContentName(s.snapshot)}
	content, err := kit.Read(ctx, key, &v1beta1.VirtualMachineSnapshotContent{}, from)
	if err != nil {
		return err
	}
	if content != nil && !capture.IsContentOf(content, s.snapshot) {
		content = nil
	}
	s.setContent(content)
	return nil
}

// setContent sets the content and the guest, which is stored in the content.
func (s *scope) setContent(content *v1beta1.VirtualMachineSnapshotContent) {
	s.observed.Content = content
	if content != nil {
		s.observed.Guest = capture.GuestOf(content)
		return
	}
	s.observed.Guest = guestOf(s.vmi)
}

// guestOf returns the guest of a VMI, which may be nil.
func guestOf(vmi *v1.VirtualMachineInstance) capture.Guest {
	if vmi == nil {
		return capture.Guest{}
	}
	return capture.Guest{
		Online: true, Paused: vmistatus.IsConditionTrue(&vmi.Status, v1.VirtualMachineInstancePaused),
		Agent: !vmi.IsFinal() && vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceAgentConnected) != nil,
	}
}

// requeue makes sure that the snapshot is reconciled again after this delay at the latest.
func (s *scope) requeue(after time.Duration) {
	s.requeueAfter = outcome.Sooner(s.requeueAfter, after)
}

// take locks the VM, and then stores it.
func (s *scope) take(ctx context.Context) error {
	if deadline := capture.Deadline(s.snapshot); !deadline.IsZero() {
		s.requeue(deadline.Sub(s.now) + time.Millisecond) // It fails after the deadline.
	}
	if err := kit.AddFinalizer(ctx, s.Client, &s.snapshot, snapshot.VirtualMachineSnapshotFinalizer); err != nil {
		return err
	}
	locked := s.observed.Source.Locked(s.snapshot.Name)
	if vm := s.observed.Source.VM; vm != nil && vm.DeletionTimestamp != nil && !locked {
		s.observed.Source.VM = nil // It cannot be locked any more.
	}
	if s.observed.Source.VM == nil || s.observed.Content != nil {
		return nil
	}
	if err := s.readSource(ctx); err != nil {
		return err
	}
	if !locked {
		if s.observed.Source.Obstacle(s.snapshot.Name) != "" {
			waited := s.now.Sub(s.snapshot.CreationTimestamp.Time)
			s.requeue(min(max(waited/10, lockRetry), lockRetryMax))
			return nil
		}
		if err := s.lock(ctx); err != nil {
			return err
		}
	}
	return s.createContent(ctx)
}

// complete unlocks the VM of a snapshot that was taken, and deletes the content with the snapshot.
func (s *scope) complete(ctx context.Context) error {
	if err := s.unlock(ctx); err != nil {
		return err
	}
	content := s.observed.Content
	if s.snapshot.DeletionTimestamp == nil || content == nil || content.DeletionTimestamp != nil {
		return nil
	}
	keep := s.snapshot.Spec.DeletionPolicy != nil &&
		*s.snapshot.Spec.DeletionPolicy == v1beta1.VirtualMachineSnapshotContentRetain
	if keep && content.Status != nil && content.Status.ReadyToUse != nil && *content.Status.ReadyToUse {
		return nil
	}
	return s.deleteContent(ctx)
}

// abandon ends a snapshot that was not taken. The VM stays locked until the content has been deleted, because the guest
// is thawed by then.
func (s *scope) abandon(ctx context.Context) error {
	settled := s.observed.Content == nil && !s.observed.Source.Locked(s.snapshot.Name) &&
		s.snapshot.DeletionTimestamp == nil &&
		s.snapshot.Status != nil && s.snapshot.Status.Phase == v1beta1.Failed
	if settled {
		return nil
	}
	// The cache may not show that the snapshot was taken in time, that the content exists, or that the VM is locked.
	if err := s.loadContent(ctx, s.APIReader); err != nil {
		return err
	}
	if s.phase() == v1beta1.Succeeded {
		return s.complete(ctx)
	}
	if s.observed.Content != nil {
		return s.deleteContent(ctx)
	}
	var err error
	if s.observed.Source.VM, err = kit.Read(ctx, s.sourceKey(), &v1.VirtualMachine{}, s.APIReader); err != nil {
		return err
	}
	return s.unlock(ctx)
}

// removeFinalizer removes the finalizer of a deleted snapshot whose VM is unlocked and whose content has been deleted
// or was taken.
func (s *scope) removeFinalizer(ctx context.Context) error {
	if s.snapshot.DeletionTimestamp == nil ||
		!controllerutil.ContainsFinalizer(s.snapshot, snapshot.VirtualMachineSnapshotFinalizer) ||
		s.phase() != v1beta1.Succeeded && s.observed.Content != nil {
		return nil
	}
	// The cache may be stale and not show the lock.
	vm, err := kit.Read(ctx, s.sourceKey(), &v1.VirtualMachine{}, s.APIReader)
	if err != nil {
		return err
	}
	s.observed.Source.VM = vm
	if err := s.unlock(ctx); err != nil {
		return err
	}
	return kit.RemoveFinalizer(ctx, s.Client, &s.snapshot, snapshot.VirtualMachineSnapshotFinalizer)
}
