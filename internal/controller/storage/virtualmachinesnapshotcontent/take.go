// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshotcontent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/optional"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
)

// actionTake is the action of events about VolumeSnapshots and the freeze.
const actionTake = "TakeSnapshot"

// take requests the VolumeSnapshots that are missing, and reports in s.taken when the guest is not to be frozen any
// more.
func (s *scope) take(ctx context.Context, abandoned bool) error {
	var requests []*csi.VolumeSnapshot
	if !abandoned {
		var err error
		if requests, err = s.plan(ctx); err != nil {
			return err
		}
		if s.taken.Problem != "" {
			s.requeue(takeRetry)
		}
	}
	guest := capture.GuestOf(s.content)
	if guest.Quiesced() && len(s.content.Spec.VolumeBackups) > 0 && s.snapshot != nil {
		return s.takeFrozen(ctx, guest, requests, abandoned)
	}
	if err := s.create(ctx, requests); err != nil {
		return err
	}
	// A refusal is in the status like any other problem. The snapshots that were created are used as soon as the others
	// can be.
	s.taken.Thawed = true
	if abandoned || !s.taken.All(s.content) || guest.Online {
		return nil
	}
	// A guest that was started in between makes it a snapshot of a running one.
	vmi, err := s.readVMI(ctx)
	if err != nil || vmi == nil {
		return err
	}
	guest.Online = true
	return s.storeGuest(ctx, guest)
}

// plan returns the VolumeSnapshots that are missing. If one of them cannot be requested, it returns none and sets the
// problem, because the guest is frozen only when all can be requested.
func (s *scope) plan(ctx context.Context) ([]*csi.VolumeSnapshot, error) {
	if s.taken.Problem != "" || s.content.Spec.Source.VirtualMachine == nil {
		return nil, nil
	}
	if s.taken.Problem = capture.TooLarge(s.content); s.taken.Problem != "" {
		return nil, nil
	}
	var requests []*csi.VolumeSnapshot
	for i := range s.content.Spec.VolumeBackups {
		backup := &s.content.Spec.VolumeBackups[i]
		name := ptr.Deref(backup.VolumeSnapshotName, "")
		if name == "" || s.taken.Snapshots[name] != nil {
			continue
		}
		class, err := volumesnapshot.ClassOf(ctx, s.Client, s.VolumeSnapshots,
			ptr.Deref(backup.PersistentVolumeClaim.Spec.StorageClassName, ""))
		switch {
		case errors.Is(err, optional.ErrUnknown):
			return nil, err
		case err != nil:
			s.taken.Problem = fmt.Sprintf("VolumeSnapshot %s: %v", name, err)
			return nil, nil
		}
		requests = append(requests, capture.VolumeSnapshot(s.content, backup, class))
	}
	return requests, nil
}

// noDryRun is in the API server's response to a dry run for which a webhook with side effects would have to be called.
// Source: k8s.io/apiserver pkg/admission/plugin/webhook/errors, NewDryRunUnsupportedErr.
const noDryRun = "does not support dry run"

// try checks by dry runs whether the API server would create VolumeSnapshots. It checks each of them by itself: a quota
// for all of them may still be exceeded. A webhook that rejects dry runs is ignored.
func (s *scope) try(ctx context.Context, requests []*csi.VolumeSnapshot) error {
	return s.problem(kit.InBatches(len(requests), func(i int) error {
		err := s.Client.Create(ctx, requests[i].DeepCopy(), client.DryRunAll)
		if apierrors.IsBadRequest(err) && strings.Contains(err.Error(), noDryRun) {
			return nil
		}
		return createError(requests[i], err)
	}))
}

// create creates VolumeSnapshots. It is fast, because the guest may be frozen. If the API server refuses one of them,
// it sets the problem.
func (s *scope) create(ctx context.Context, requests []*csi.VolumeSnapshot) error {
	err := kit.InBatches(len(requests), func(i int) error {
		err := s.Client.Create(ctx, requests[i])
		switch {
		case err == nil:
			s.Recorder.Eventf(s.content, nil, corev1.EventTypeNormal, snapshot.VolumeSnapshotCreatedEvent, actionTake,
				"Successfully created VolumeSnapshot %s", requests[i].Name)
		case isRefused(err):
			// A quota refuses also what exists already.
			if requested, readErr := s.isRequested(ctx, requests[i].Name); requested || readErr != nil {
				return readErr
			}
		}
		return createError(requests[i], err)
	})
	if err != nil {
		return s.problem(err)
	}
	for _, made := range requests {
		s.taken.Snapshots[made.Name] = made
	}
	return nil
}

// createError wraps the error of a creation. That the object exists already is none: the cache was behind.
func createError(object client.Object, err error) error {
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return fmt.Errorf("create VolumeSnapshot %s: %w", client.ObjectKeyFromObject(object), err)
}

// isRefused reports whether an error means that the API server does not accept a VolumeSnapshot, because of a quota, a
// policy or a webhook. A retry helps only after the quota, policy or webhook changes.
func isRefused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// problem sets the problem if a VolumeSnapshot is refused. Any other error is returned.
func (s *scope) problem(err error) error {
	if !isRefused(err) {
		return err
	}
	s.taken.Problem = err.Error()
	s.requeue(takeRetry)
	return nil
}

// isAnyRequested reads from the API server whether a VolumeSnapshot was requested: the cache may be behind.
func (s *scope) isAnyRequested(ctx context.Context) (bool, error) {
	for _, name := range volumeSnapshotNames(s.content) {
		if requested, err := s.isRequested(ctx, name); err != nil || requested {
			return requested, err
		}
	}
	return false, nil
}

func (s *scope) isRequested(ctx context.Context, name string) (bool, error) {
	key := client.ObjectKey{Namespace: s.content.Namespace, Name: name}
	err := s.APIReader.Get(ctx, key, &csi.VolumeSnapshot{})
	switch {
	case err == nil:
		return true, nil
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return false, nil
	default:
		return false, fmt.Errorf("get VolumeSnapshot %s: %w", key, err)
	}
}

// storeGuest stores the guest in the content, unless it is stored already.
func (s *scope) storeGuest(ctx context.Context, guest capture.Guest) error {
	if capture.GuestOf(s.content) == guest {
		return nil
	}
	var failed error
	err := kit.Patch(ctx, s.Client, &s.content,
		func(o *v1beta1.VirtualMachineSnapshotContent) { failed = capture.SetGuest(o, guest) })
	return errors.Join(failed, err)
}
