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
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// actionMigrate is the action of events about a migration.
const actionMigrate = "Migrate"

// PodFate maps a launcher Pod to its state in the migration protocol. A nil Pod is gone.
func PodFate(pod *corev1.Pod) protocol.PodFate {
	switch {
	case pod == nil:
		return protocol.PodGone
	case !podstate.Finished(pod):
		return protocol.PodAlive
	}
	if outcome, ok := outcomeOf(pod); ok && outcome.Reason == launcherpod.OutcomeMigrated {
		return protocol.PodMigrated
	}
	return protocol.PodEnded
}

// MigrationCleanedUp reports whether virt-controller has nothing left to do about the VMI's last migration, so that
// another one may start. own and other are the Pods of podspec.OwnPodName and podspec.OtherPodName.
func MigrationCleanedUp(vmi *v1.VirtualMachineInstance, own, other *corev1.Pod) bool {
	record, ok := vmistatus.MigrationRecord(&vmi.Status)
	if !ok {
		return true
	}
	decided := record.Failed || record.Owner == protocol.Target
	return decided && len(protocol.DecideController(viewOf(record, own, other))) == 0 &&
		PodFate(other) != protocol.PodAlive
}

func viewOf(record protocol.Record, own, other *corev1.Pod) protocol.ControllerView {
	v := protocol.ControllerView{Record: record, SourcePod: PodFate(own), TargetPod: PodFate(other)}
	if record.Owner == protocol.Target {
		v.SourcePod, v.TargetPod = v.TargetPod, v.SourcePod
	}
	return v
}

// loadOtherPod reads the other Pod of the VMI's migration, and decides what the migration demands. If its absence
// demands something, the API server has to confirm it.
func (s *scope) loadOtherPod(ctx context.Context) error {
	record, ok := vmistatus.MigrationRecord(&s.vmi.Status)
	if !ok {
		return nil
	}
	// A guest that is to stop does not need the rest of its memory.
	record.PostCopy = record.PostCopy && !s.deleting()
	key := client.ObjectKey{Namespace: s.vmi.Namespace, Name: podspec.OtherPodName(s.vmi)}
	for _, reader := range []client.Reader{s.client, s.apiReader} {
		pod := &corev1.Pod{}
		err := reader.Get(ctx, key, pod)
		switch {
		case err == nil && podspec.IsOf(pod, s.vmi):
			s.otherPod = pod
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("get launcher Pod %s of the VMI's migration: %w", key, err)
		}
		s.migrating, s.migrationActions = true, protocol.DecideController(viewOf(record, s.pod, s.otherPod))
		if err == nil || len(s.migrationActions) == 0 {
			return nil
		}
	}
	return nil
}

// continueMigration does what the VMI's migration demands. That depends on the VMI's status only: a migration whose
// object was deleted is finished as well.
func (s *scope) continueMigration(ctx context.Context) error {
	for _, action := range s.migrationActions {
		switch action {
		case protocol.TransferOwnership:
			if err := s.transferOwnership(ctx); err != nil {
				return err
			}
		case protocol.DeleteSource:
			if err := s.deleteOtherPod(ctx); err != nil {
				return err
			}
		case protocol.DeleteTarget:
			if err := s.deleteTarget(ctx); err != nil {
				return err
			}
		case protocol.RequestAbort:
			s.abortMigration = true
		}
	}
	if s.migrating && s.deleting() && s.vmi.Status.NodeName != s.vmi.Status.MigrationState.TargetNode {
		s.abortMigration = true // A deleted guest is shut down on the source.
	}
	if err := s.deleteFinishedSource(ctx); err != nil {
		return err
	}
	return s.labelNodes(ctx)
}

// deleteFinishedSource deletes the source's Pod once the target owns the guest and the Pod has finished by itself, as
// after a post-copy.
func (s *scope) deleteFinishedSource(ctx context.Context) error {
	if !s.migrating || s.stage() != vmistatus.Live || s.vmi.Status.NodeName != s.vmi.Status.MigrationState.TargetNode ||
		PodFate(s.otherPod) == protocol.PodAlive || PodFate(s.pod) != protocol.PodAlive {
		return nil
	}
	return s.deleteOtherPod(ctx)
}

// transferOwnership records that the target owns the guest if the source's agent could not do so.
func (s *scope) transferOwnership(ctx context.Context) error {
	if err := vmistatus.TransferOwnership(ctx, s.client, s.vmi); err != nil {
		return err
	}
	s.pod, s.otherPod = s.otherPod, s.pod
	s.event(corev1.EventTypeNormal, string(v1.Migrated), actionMigrate,
		"The guest belongs to node %s now: its launcher Pod on node %s ended as migrated",
		s.vmi.Status.NodeName, s.vmi.Status.MigrationState.SourceNode)
	return nil
}

// deleteTarget deletes the target's Pod if the VMI as the API server has it now demands that too. The cache of VMIs can
// be older than that of Pods: the source's Pod may have finished because the guest runs in the target's.
func (s *scope) deleteTarget(ctx context.Context) error {
	if s.otherPod == nil || s.otherPod.DeletionTimestamp != nil {
		return nil
	}
	key, now := client.ObjectKeyFromObject(s.vmi), &v1.VirtualMachineInstance{}
	if err := s.apiReader.Get(ctx, key, now); err != nil {
		return client.IgnoreNotFound(err) // The garbage collector deletes the Pods of a VMI that is gone.
	}
	record, _ := vmistatus.MigrationRecord(&now.Status)
	same := now.UID == s.vmi.UID && podspec.OtherPodName(now) == s.otherPod.Name
	if !same || !slices.Contains(protocol.DecideController(viewOf(record, s.pod, s.otherPod)), protocol.DeleteTarget) {
		return apierrors.NewConflict(v1.GroupVersion.WithResource("virtualmachineinstances").GroupResource(), key.Name,
			errStaleVMI)
	}
	return s.deleteOtherPod(ctx)
}

// errStaleVMI is the cause of a conflict: with the API server's version of the VMI the decision is another one.
var errStaleVMI = errors.New("the state of its migration has changed since it was read")

func (s *scope) deleteOtherPod(ctx context.Context) error {
	if s.otherPod == nil || s.otherPod.DeletionTimestamp != nil {
		return nil
	}
	err := s.client.Delete(ctx, s.otherPod, client.Preconditions{UID: ptr.To(s.otherPod.UID)})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.event(corev1.EventTypeWarning, ReasonFailedDelete, actionDelete,
			"Error deleting virtual machine pod %s: %v", s.otherPod.Name, err)
		return fmt.Errorf("delete launcher Pod %s of the VMI's migration: %w", s.otherPod.Name, err)
	}
	s.event(corev1.EventTypeNormal, ReasonSuccessfulDelete, actionDelete, "Deleted virtual machine pod %s",
		s.otherPod.Name)
	return nil
}

// labelNodes keeps the VMI's labels with the nodes of its guest and of its migration's target, and the annotation with
// the source of an eviction, in step with the status.
func (s *scope) labelNodes(ctx context.Context) error {
	if s.stage() != vmistatus.Live || !s.migrating {
		return nil
	}
	m := s.vmi.Status.MigrationState
	return s.patchMetadata(ctx, func(vmi *v1.VirtualMachineInstance) {
		metav1.SetMetaDataLabel(&vmi.ObjectMeta, v1.NodeNameLabel, vmi.Status.NodeName)
		delete(vmi.Labels, v1.MigrationTargetNodeNameLabel)
		if !vmistatus.HasEnded(m) && vmi.Status.NodeName != m.TargetNode {
			vmi.Labels[v1.MigrationTargetNodeNameLabel] = m.TargetNode
		}
		if m.Completed && !m.Failed && !eviction.IsMarked(vmi) {
			delete(vmi.Annotations, v1.EvictionSourceAnnotation) // The eviction is done.
		}
	})
}

// mayEnd reports whether the VMI may end as far as its migration is concerned: no Pod can run its guest any more.
func (s *scope) mayEnd() bool {
	return !s.migrating || slices.Contains(s.migrationActions, protocol.Finish)
}

// setMigration reports the active Pods of a VMI that has a migration and the version of the guest's launcher, and
// requests an abort.
func setMigration(o *observed, r *result, status *v1.VirtualMachineInstanceStatus) {
	if !o.migrating {
		return
	}
	if r.abortMigration && !vmistatus.HasEnded(status.MigrationState) {
		status.MigrationState.AbortRequested = true
	}
	active := map[types.UID]string{}
	for _, pod := range []*corev1.Pod{o.pod, o.otherPod} {
		if PodFate(pod) == protocol.PodAlive {
			active[pod.UID] = pod.Spec.NodeName
		}
	}
	status.ActivePods = active
	if o.pod != nil {
		status.LauncherContainerImageVersion = podspec.LauncherImage(o.pod)
	}
	setTransport(o, status)
}

// setEvacuation brings the condition EvictionRequested in step with status.evacuationNodeName, which the webhook and
// others set and remove. A name that is not that of the guest's node is removed.
func setEvacuation(o *observed, status *v1.VirtualMachineInstanceStatus) {
	if status.EvacuationNodeName != status.NodeName {
		status.EvacuationNodeName = ""
	}
	eviction.Observe(status, metav1.NewTime(o.now))
}

// forgetEviction removes the annotations of an evicted Pod when the eviction was canceled. The webhook sets them after
// status.evacuationNodeName, so that a stale cache could look like a cancellation: the API server has to confirm it.
func (s *scope) forgetEviction(ctx context.Context, pod *corev1.Pod) error {
	if !eviction.IsAnnotated(&pod.ObjectMeta) || eviction.IsMarked(s.vmi) {
		return nil
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := s.apiReader.Get(ctx, client.ObjectKeyFromObject(s.vmi), vmi); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !eviction.IsMarked(vmi) {
		eviction.Forget(&pod.ObjectMeta)
	}
	return nil
}

// volumesChange is the message of the condition VolumesChange. KubeVirt's.
const volumesChange = "migrate volumes"

// setVolumesChange sets the condition that requests a migration once the spec names the claims that volumes move to:
// the target's Pod is rendered from them. Transferring ownership removes the condition.
func setVolumesChange(o *observed, status *v1.VirtualMachineInstanceStatus) {
	if !vmistatus.MovesVolumes(status) || !vmistatus.NamesDestinations(o.vmi) {
		return
	}
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceVolumesChange, Status: corev1.ConditionTrue, Message: volumesChange,
	}, metav1.NewTime(o.now))
}
