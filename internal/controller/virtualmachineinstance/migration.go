// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/eviction"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/migration"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// actionMigrate is the action of events about a guest that changes hands.
const actionMigrate = "Migrate"

// PodState is what a launcher Pod means to a migration. A nil Pod is gone.
func PodState(pod *corev1.Pod) migration.Pod {
	switch {
	case pod == nil:
		return migration.PodGone
	case !finished(pod):
		return migration.PodAlive
	}
	if outcome, ok := outcomeOf(pod); ok && outcome.Reason == launcherpod.OutcomeMigrated {
		return migration.PodMigrated
	}
	return migration.PodEnded
}

// Settled says that nothing is left to be done about the migrations that a VMI had: another one may begin. Own and other are the
// Pods of podspec.OwnPodName and podspec.OtherPodName.
func Settled(vmi *v1.VirtualMachineInstance, own, other *corev1.Pod) bool {
	record, ok := vmistatus.MigrationRecord(&vmi.Status)
	if !ok {
		return true
	}
	decided := record.Failed || record.Owner == migration.Target
	return decided && len(migration.DecideController(viewOf(record, own, other))) == 0 && PodState(other) != migration.PodAlive
}

func viewOf(record migration.Record, own, other *corev1.Pod) migration.ControllerView {
	v := migration.ControllerView{Record: record, SourcePod: PodState(own), TargetPod: PodState(other)}
	if record.Owner == migration.Target {
		v.SourcePod, v.TargetPod = v.TargetPod, v.SourcePod
	}
	return v
}

// loadOther reads the other Pod of the VMI's migration and decides what is to be done about both. Where the absence of a Pod
// makes a difference, the API server is asked.
func (s *Scope) loadOther(ctx context.Context) error {
	record, ok := vmistatus.MigrationRecord(&s.VMI.Status)
	if !ok {
		return nil
	}
	// A guest that is to end needs no more of its memory.
	record.PostCopy = record.PostCopy && !s.deleting()
	key := client.ObjectKey{Namespace: s.VMI.Namespace, Name: podspec.OtherPodName(s.VMI)}
	for _, reader := range []client.Reader{s.Client, s.Live} {
		pod := &corev1.Pod{}
		err := reader.Get(ctx, key, pod)
		switch {
		case err == nil && podspec.IsOf(pod, s.VMI):
			s.Other = pod
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("get launcher Pod %s of the VMI's migration: %w", key, err)
		}
		s.migrating, s.actions = true, migration.DecideController(viewOf(record, s.Pod, s.Other))
		if err == nil || len(s.actions) == 0 {
			return nil
		}
	}
	return nil
}

// changeHands carries out what was decided about a VMI whose guest moves, or has moved, to another Pod. It follows from the VMI's
// status alone: a migration whose object somebody took away comes to its end as well.
func changeHands(ctx context.Context, s *Scope) error {
	for _, action := range s.actions {
		switch action {
		case migration.Yield:
			if err := s.yield(ctx); err != nil {
				return err
			}
		case migration.DeleteSource:
			if err := s.deleteOther(ctx); err != nil {
				return err
			}
		case migration.DeleteTarget:
			if err := s.deleteTarget(ctx); err != nil {
				return err
			}
		case migration.RequestAbort:
			s.abort = true
		}
	}
	if s.migrating && s.deleting() && s.VMI.Status.NodeName != s.VMI.Status.MigrationState.TargetNode {
		s.abort = true // A guest that is to stop does so where it is.
	}
	if err := s.removeFormer(ctx); err != nil {
		return err
	}
	return s.labelNodes(ctx)
}

// removeFormer deletes the Pod that the guest has left when it ended by itself, as that of a post-copy does once all is copied.
func (s *Scope) removeFormer(ctx context.Context) error {
	if !s.migrating || s.stage() != vmistatus.Live || s.VMI.Status.NodeName != s.VMI.Status.MigrationState.TargetNode ||
		PodState(s.Other) == migration.PodAlive || PodState(s.Pod) != migration.PodAlive {
		return nil
	}
	return s.deleteOther(ctx)
}

// yield records that the target owns the guest, in place of an agent that could not.
func (s *Scope) yield(ctx context.Context) error {
	if err := vmistatus.HandOver(ctx, s.Client, s.VMI); err != nil {
		return err
	}
	s.Pod, s.Other = s.Other, s.Pod
	s.event(corev1.EventTypeNormal, string(v1.Migrated), actionMigrate, "The guest was handed over to node %s: its launcher Pod on node %s ended as migrated",
		s.VMI.Status.NodeName, s.VMI.Status.MigrationState.SourceNode)
	return nil
}

// deleteTarget deletes the target's Pod, if what the API server says this moment leads there as well. The cache of VMIs can be
// behind that of Pods: the source's Pod may be gone because the guest has left it, and run in the very Pod that is to go.
func (s *Scope) deleteTarget(ctx context.Context) error {
	if s.Other == nil || s.Other.DeletionTimestamp != nil {
		return nil
	}
	key, now := client.ObjectKeyFromObject(s.VMI), &v1.VirtualMachineInstance{}
	if err := s.Live.Get(ctx, key, now); err != nil {
		return client.IgnoreNotFound(err) // The garbage collector takes the Pods of a VMI that is gone.
	}
	record, _ := vmistatus.MigrationRecord(&now.Status)
	same := now.UID == s.VMI.UID && podspec.OtherPodName(now) == s.Other.Name
	if !same || !slices.Contains(migration.DecideController(viewOf(record, s.Pod, s.Other)), migration.DeleteTarget) {
		return apierrors.NewConflict(v1.GroupVersion.WithResource("virtualmachineinstances").GroupResource(), key.Name, errMoved)
	}
	return s.deleteOther(ctx)
}

var errMoved = errors.New("its migration has gone on since it was read")

func (s *Scope) deleteOther(ctx context.Context) error {
	if s.Other == nil || s.Other.DeletionTimestamp != nil {
		return nil
	}
	err := s.Client.Delete(ctx, s.Other, client.Preconditions{UID: ptr.To(s.Other.UID)})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.event(corev1.EventTypeWarning, ReasonFailedDelete, actionDelete, "Error deleting virtual machine pod %s: %v", s.Other.Name, err)
		return fmt.Errorf("delete launcher Pod %s of the VMI's migration: %w", s.Other.Name, err)
	}
	s.event(corev1.EventTypeNormal, ReasonSuccessfulDelete, actionDelete, "Deleted virtual machine pod %s", s.Other.Name)
	return nil
}

// labelNodes keeps the labels that tell a guest's nodes, and who had it leave one, in step with the status.
func (s *Scope) labelNodes(ctx context.Context) error {
	if s.stage() != vmistatus.Live || !s.migrating {
		return nil
	}
	m := s.VMI.Status.MigrationState
	return s.patchMetadata(ctx, func(vmi *v1.VirtualMachineInstance) {
		metav1.SetMetaDataLabel(&vmi.ObjectMeta, v1.NodeNameLabel, vmi.Status.NodeName)
		delete(vmi.Labels, v1.MigrationTargetNodeNameLabel)
		if !vmistatus.HasEnded(m) && vmi.Status.NodeName != m.TargetNode {
			vmi.Labels[v1.MigrationTargetNodeNameLabel] = m.TargetNode
		}
		if m.Completed && !m.Failed && !eviction.IsMarked(vmi) {
			delete(vmi.Annotations, v1.EvictionSourceAnnotation) // whoever evicted it has had it leave
		}
	})
}

// mayEnd says that the VMI may end as far as a migration is concerned: nothing can run its guest any more.
func (s *Scope) mayEnd() bool {
	return !s.migrating || slices.Contains(s.actions, migration.Finish)
}

// setMigration tells where the Pods of a VMI that has migrated are, and which launcher its guest is in.
func setMigration(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	if !s.migrating {
		return
	}
	if s.abort && !vmistatus.HasEnded(status.MigrationState) {
		status.MigrationState.AbortRequested = true
	}
	active := map[types.UID]string{}
	for _, pod := range []*corev1.Pod{s.Pod, s.Other} {
		if PodState(pod) == migration.PodAlive {
			active[pod.UID] = pod.Spec.NodeName
		}
	}
	status.ActivePods = active
	if s.Pod != nil {
		status.LauncherContainerImageVersion = podspec.LauncherImage(s.Pod)
	}
	setTransport(s, status)
}
