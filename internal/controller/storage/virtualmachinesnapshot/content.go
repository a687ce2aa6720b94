// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshot

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/virtualmachine"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
)

// actionCreate is the action of the event about a new content.
const actionCreate = "Create"

// createContent stores the locked VM.
func (s *scope) createContent(ctx context.Context) error {
	// The cache may be stale and not show the VMI, whose guest would then not be frozen.
	if err := s.loadVMI(ctx, s.APIReader); err != nil {
		return err
	}
	stored, err := s.stored(ctx)
	if err != nil {
		return err
	}
	if stored.Volumes, err = s.wholeClaims(ctx, stored.Volumes); err != nil {
		return err
	}
	content, copies := capture.Content(s.snapshot, stored)
	if err := capture.SetGuest(content, guestOf(s.vmi)); err != nil {
		return err
	}
	// The copies are created before the content, which refers to them.
	for _, revision := range copies {
		if err := s.copyRevision(ctx, revision); err != nil {
			return err
		}
	}
	key := client.ObjectKeyFromObject(content)
	err = s.Client.Create(ctx, content)
	switch {
	case apierrors.IsAlreadyExists(err):
		if err := s.loadContent(ctx, s.APIReader); err != nil || s.observed.Content != nil {
			return err // The cache was stale.
		}
		return fmt.Errorf("VirtualMachineSnapshotContent %s exists and belongs to another snapshot: delete it", key)
	case err != nil:
		return fmt.Errorf("create VirtualMachineSnapshotContent %s: %w", key, err)
	}
	s.setContent(content)
	s.Recorder.Eventf(s.snapshot, nil, corev1.EventTypeNormal, snapshot.ContentCreatedEvent, actionCreate,
		"Successfully created VirtualMachineSnapshotContent %s", content.Name)
	return nil
}

// wholeClaims returns the volumes with their claims as they are on the API server: the cache has not all of their
// annotations.
func (s *scope) wholeClaims(ctx context.Context, volumes []capture.Volume) ([]capture.Volume, error) {
	whole := slices.Clone(volumes)
	for i := range whole {
		if whole[i].Class == "" || whole[i].Claim == nil {
			continue
		}
		key := client.ObjectKeyFromObject(whole[i].Claim)
		claim, err := kit.Read(ctx, key, &corev1.PersistentVolumeClaim{}, s.APIReader)
		switch {
		case err != nil:
			return nil, err
		case claim == nil || claim.UID != whole[i].Claim.UID:
			return nil, fmt.Errorf("PersistentVolumeClaim %s was deleted while a snapshot of it was about to be taken", key)
		}
		whole[i].Claim = claim
	}
	return whole, nil
}

// stored returns the parts of the VM that the content stores.
func (s *scope) stored(ctx context.Context) (capture.Stored, error) {
	vm := s.observed.Source.VM
	out := capture.Stored{VM: vm, Volumes: s.observed.Source.Volumes}
	scope := &virtualmachine.Scope{Client: s.Client, APIReader: s.APIReader, VM: vm, VMI: s.vmi}
	var err error
	if out.Identity, err = virtualmachine.StoredIdentity(ctx, scope); err != nil {
		return out, err
	}
	if s.vmi != nil {
		out.Started, err = virtualmachine.StartedSpec(ctx, scope)
	}
	return out, err
}

// copyRevision copies a ControllerRevision with the VM's instance type or preference.
func (s *scope) copyRevision(ctx context.Context, revision capture.RevisionCopy) error {
	from := &appsv1.ControllerRevision{}
	key := client.ObjectKey{Namespace: s.snapshot.Namespace, Name: revision.From}
	if err := s.APIReader.Get(ctx, key, from); err != nil {
		return fmt.Errorf("get ControllerRevision %s: %w", key, err)
	}
	err := s.Client.Create(ctx, capture.Revision(s.snapshot, from, revision.To))
	switch {
	case apierrors.IsAlreadyExists(err):
		return s.checkCopy(ctx, from, revision.To)
	case err != nil:
		return fmt.Errorf("create ControllerRevision %s/%s: %w", s.snapshot.Namespace, revision.To, err)
	}
	return nil
}

// checkCopy returns an error unless a ControllerRevision is a copy that an earlier attempt has created.
func (s *scope) checkCopy(ctx context.Context, from *appsv1.ControllerRevision, name string) error {
	live, key := &appsv1.ControllerRevision{}, client.ObjectKey{Namespace: s.snapshot.Namespace, Name: name}
	if err := s.APIReader.Get(ctx, key, live); err != nil {
		return fmt.Errorf("get ControllerRevision %s: %w", key, err)
	}
	if !metav1.IsControlledBy(live, s.snapshot) || !capture.SameData(from, live) {
		return fmt.Errorf("ControllerRevision %s exists and is not this snapshot's copy of %s: delete it, or give the snapshot another name", key, from.Name)
	}
	return nil
}

// deleteContent deletes the content, unless it has changed since it was read, because it may be complete by now.
func (s *scope) deleteContent(ctx context.Context) error {
	content := s.observed.Content
	if content.DeletionTimestamp != nil {
		return nil
	}
	return kit.Delete(ctx, s.Client, content, kit.Unchanged(content))
}

// writeStatus writes the status if it changed.
func (s *scope) writeStatus(ctx context.Context) error {
	status := capture.Status(s.snapshot, s.observed)
	return client.IgnoreNotFound(
		kit.WriteStatus(ctx, s.Client, &s.snapshot, func(o *v1beta1.VirtualMachineSnapshot) { o.Status = status }))
}
