// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtualmachinesnapshotcontent takes the snapshots of the disks in a VirtualMachineSnapshotContent, while the
// guest is frozen if it has an agent, and reports their state for ever. When the guest is frozen and thawed is decided
// by package freeze, what the status is by package capture.
package virtualmachinesnapshotcontent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/internal/outcome"
)

// takeRetry is when to try again to request VolumeSnapshots: their classes trigger no reconciliation.
const takeRetry = 5 * time.Second

// scope is one reconciliation of one content.
type scope struct {
	*Reconciler
	// now is the time of the reconciliation.
	now time.Time
	// content is the content as read. Writes of metadata refresh it; its status changes only when the status is written.
	content *v1beta1.VirtualMachineSnapshotContent
	// snapshot is the snapshot that the content belongs to, or nil.
	snapshot *v1beta1.VirtualMachineSnapshot
	// taken are the VolumeSnapshots.
	taken capture.Taken
	// requeueAfter is when to reconcile again even if nothing changes, or 0.
	requeueAfter time.Duration
}

// run reconciles the content.
func (s *scope) run(ctx context.Context) error {
	if err := s.load(ctx); err != nil {
		return err
	}
	abandoned := s.abandoned()
	// 1. The snapshots are taken, and the guest is thawed, before anything else: also if the content is deleted.
	if !isCreated(s.content) {
		if err := s.take(ctx, abandoned); err != nil {
			return err
		}
	}
	// 2. A content of which no more is to be taken does not protect anything.
	if abandoned && (isCreated(s.content) || s.taken.Thawed) {
		err := kit.RemoveFinalizer(ctx, s.Client, &s.content, snapshot.VirtualMachineSnapshotContentFinalizer)
		if err != nil {
			return err
		}
	}
	if s.content.DeletionTimestamp != nil || abandoned && s.isDeletedWithSnapshot() {
		return nil
	}
	return s.writeStatus(ctx)
}

// isCreated reports whether all snapshots of the disks have been taken.
func isCreated(content *v1beta1.VirtualMachineSnapshotContent) bool {
	return content.Status != nil && content.Status.CreationTime != nil
}

// load reads the snapshot and the VolumeSnapshots.
func (s *scope) load(ctx context.Context) error {
	if err := s.loadSnapshot(ctx); err != nil {
		return err
	}
	s.taken = capture.Taken{
		Now: s.now, Snapshots: map[string]*csi.VolumeSnapshot{},
		Abandoned: s.snapshot == nil || s.snapshot.DeletionTimestamp != nil,
	}
	for _, name := range volumeSnapshotNames(s.content) {
		found, err := s.VolumeSnapshots.Get(ctx, client.ObjectKey{Namespace: s.content.Namespace, Name: name})
		switch {
		case errors.Is(err, volumesnapshot.ErrNotInstalled):
			s.taken.Problem = err.Error()
			return nil
		case apierrors.IsNotFound(err):
		case err != nil:
			return err
		default:
			s.taken.Snapshots[name] = found
		}
	}
	return nil
}

// loadSnapshot reads the snapshot that the content names, if that is its content.
func (s *scope) loadSnapshot(ctx context.Context) error {
	key := client.ObjectKey{Namespace: s.content.Namespace, Name: ptr.Deref(s.content.Spec.VirtualMachineSnapshotName, "")}
	if key.Name == "" {
		return nil
	}
	of, err := kit.Read(ctx, key, &v1beta1.VirtualMachineSnapshot{}, s.Client, s.APIReader) // The cache may be behind.
	if err != nil || of == nil {
		return err
	}
	if capture.IsContentOf(s.content, of) {
		s.snapshot = of
	}
	return nil
}

// abandoned reports whether the snapshots that are missing are not to be taken any more.
func (s *scope) abandoned() bool {
	of := s.snapshot
	if of == nil || of.DeletionTimestamp != nil || of.Status != nil && of.Status.Phase == v1beta1.Failed {
		return true
	}
	deadline := capture.Deadline(of)
	if deadline.IsZero() {
		return false
	}
	late := s.now.After(deadline)
	if !late && !isCreated(s.content) {
		s.requeue(deadline.Sub(s.now) + time.Millisecond)
	}
	// What was taken in time is not abandoned because that is noticed late.
	return late && !isCreated(s.content) && !s.taken.All(s.content)
}

// isDeletedWithSnapshot reports whether the reconciler of snapshots deletes the content.
func (s *scope) isDeletedWithSnapshot() bool {
	if s.snapshot == nil {
		return false
	}
	policy := s.snapshot.Spec.DeletionPolicy
	ready := s.content.Status != nil && ptr.Deref(s.content.Status.ReadyToUse, false)
	return policy == nil || *policy == v1beta1.VirtualMachineSnapshotContentDelete || !ready
}

// requeue reconciles again after a time, unless that is to happen earlier anyway.
func (s *scope) requeue(after time.Duration) {
	after = max(after, time.Millisecond)
	s.requeueAfter = outcome.Sooner(s.requeueAfter, after)
}

// writeStatus writes the status if it changed, and records the VolumeSnapshots that are gone.
func (s *scope) writeStatus(ctx context.Context) error {
	status := capture.ContentStatus(s.content, s.taken)
	return client.IgnoreNotFound(
		kit.WriteStatus(ctx, s.Client, &s.content, func(o *v1beta1.VirtualMachineSnapshotContent) { o.Status = status },
			func(before *v1beta1.VirtualMachineSnapshotContent) {
				for _, name := range missing(before.Status, s.taken) {
					s.Recorder.Eventf(s.content, nil, corev1.EventTypeWarning, snapshot.VolumeSnapshotMissingEvent, actionTake,
						"VolumeSnapshot %s no longer exists", name)
				}
			}))
}

// missing returns the VolumeSnapshots that were there when the status was written before, and are gone.
func missing(before *v1beta1.VirtualMachineSnapshotContentStatus, taken capture.Taken) []string {
	if before == nil || before.CreationTime == nil {
		return nil
	}
	var names []string
	for i := range before.VolumeSnapshotStatus {
		if name := before.VolumeSnapshotStatus[i].VolumeSnapshotName; taken.Snapshots[name] == nil {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, strings.Compare)
	return names
}
