// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// admit creates the target's Pod when the migration gets a slot.
func admit(ctx context.Context, s *Scope) error {
	if s.Failure != "" || s.Target != nil || s.Migration.Status.Phase != v1.MigrationPending {
		return nil
	}
	// 1. The cache suffices to decide to wait, because each relevant change triggers another reconciliation.
	ready, err := s.ready(ctx)
	if err != nil || !ready {
		return err
	}
	admitted, err := s.hasSlot(ctx, s.Client)
	if err != nil || !admitted {
		return err
	}
	// 2. A slot is assigned from the state on the API server, and the Pod is created before the next migration is
	//    admitted.
	s.Queue.Lock()
	defer s.Queue.Unlock()
	if admitted, err = s.hasSlot(ctx, s.APIReader); err != nil || !admitted {
		return err
	}
	err = s.createTarget(ctx)
	if s.Target != nil {
		s.Queue.record(s.Migration.Namespace)
	}
	return err
}

// ready reports whether only the queue keeps the migration from starting.
func (s *Scope) ready(ctx context.Context) (bool, error) {
	if s.waitsForSnapshot() || s.waitsForBackup() || s.waitsForUtilityVolumes() {
		return false, nil
	}
	blocked, wait, err := s.isBlocked(ctx, s.Migration, s.VMI, s.Siblings)
	if wait > 0 {
		s.RequeueAfter = outcome.Sooner(s.RequeueAfter, wait)
		s.Recorder.Eventf(s.VMI, s.Migration, corev1.EventTypeWarning, ReasonBackoff, actionWait,
			"backoff migrating vmi %s/%s", s.VMI.Namespace, s.VMI.Name)
	}
	return err == nil && !blocked, err
}

// waitsForSnapshot reports whether the guest is, or will be, frozen for a snapshot or a backup. The agent has to record
// the freeze in the domain's metadata, which libvirt does not change during a migration.
func (s *Scope) waitsForSnapshot() bool {
	wait := freeze.Remaining(&s.VMI.Status, s.Now)
	if wait == 0 {
		return false
	}
	s.RequeueAfter = outcome.Sooner(s.RequeueAfter, wait)
	s.Recorder.Eventf(s.VMI, s.Migration, corev1.EventTypeNormal, ReasonWaitsForSnapshot, actionWait,
		"The migration %s waits until the guest, which a snapshot or a backup has frozen, is thawed", s.Migration.Name)
	return true
}

// waitsForBackup reports whether the guest's disks are, or will be, backed up. libvirt refuses to migrate a guest
// during a backup. The VMI changes when it has ended.
func (s *Scope) waitsForBackup() bool {
	if !backup.InProgress(&s.VMI.Status) {
		return false
	}
	s.Recorder.Eventf(s.VMI, s.Migration, corev1.EventTypeNormal, ReasonWaitsForBackup, actionWait,
		"The migration %s waits until the VirtualMachineBackup of the guest has ended, or is deleted", s.Migration.Name)
	return true
}

// waitsForUtilityVolumes reports whether the launcher Pod has volumes for files of QEMU's, which the target's would not
// have. The VMI changes when they are detached. If that takes too long, the migration fails.
func (s *Scope) waitsForUtilityVolumes() bool {
	if len(s.VMI.Spec.UtilityVolumes) == 0 {
		return false
	}
	s.UtilityVolumes = true
	wait := max(s.utilityDeadline().Sub(s.Now), time.Millisecond)
	s.RequeueAfter = outcome.Sooner(s.RequeueAfter, wait)
	return true
}

// utilityDeadline returns until when the migration waits for utility volumes.
func (s *Scope) utilityDeadline() time.Time {
	since := s.Now
	if c := conditions.Find(s.Migration.Status.Conditions,
		v1.VirtualMachineInstanceMigrationBlockedByUtilityVolumes); c != nil {
		since = c.LastTransitionTime.Time
	}
	return since.Add(time.Duration(ptr.Deref(s.Migrations.UtilityVolumesTimeout, 0)) * time.Second)
}

// isBlocked reports whether something other than the queue keeps a migration from starting, and for how long if that is
// known. Siblings are the migrations of its VMI.
func (s *Scope) isBlocked(
	ctx context.Context, m *v1.VirtualMachineInstanceMigration, vmi *v1.VirtualMachineInstance,
	siblings []*v1.VirtualMachineInstanceMigration,
) (bool, time.Duration, error) {
	// The agent reports the SELinux context. Without it, the target's Pod could not use the guest's files.
	if *s.Migrations.MatchSELinuxLevelOnMigration && vmi.Status.SelinuxContext == "" {
		return true, 0, nil
	}
	if !vmistatus.NamesDestinations(vmi) || !vmi.IsRunning() || vmi.DeletionTimestamp != nil || isPreceded(m, siblings) ||
		freeze.Remaining(&vmi.Status, s.Now) > 0 || backup.InProgress(&vmi.Status) || len(vmi.Spec.UtilityVolumes) > 0 {
		return true, 0, nil
	}
	if wait := backoff(m, siblings, s.Now); wait > 0 {
		return true, wait, nil
	}
	own, err := podOf(ctx, s.Client, vmi, podspec.OwnPodName(vmi))
	if err != nil || !s.alive(own) || own.DeletionTimestamp != nil {
		return true, 0, err
	}
	cleanedUp, err := cleanedUp(ctx, s.Client, vmi, own)
	return !cleanedUp, 0, err
}

// hasSlot reports whether the migration has a slot or gets one now.
func (s *Scope) hasSlot(ctx context.Context, reader client.Reader) (bool, error) {
	candidates, err := s.candidates(ctx, reader)
	if err != nil {
		return false, err
	}
	limits := Limits{
		PerCluster: int(*s.Migrations.ParallelMigrationsPerCluster),
		PerNode:    int(*s.Migrations.ParallelOutboundMigrationsPerNode),
	}
	admitted, err := Admit(candidates, limits, s.Queue.current(),
		func(c *Candidate) error { return s.complete(ctx, reader, c) })
	if err != nil || admitted[s.Migration.UID] {
		return err == nil, err
	}
	s.requeueWhenOverdue(candidates)
	return false, nil
}

// requeueWhenOverdue requeues when the next migration with a slot becomes overdue, which no event reports.
func (s *Scope) requeueWhenOverdue(candidates []Candidate) {
	for i := range candidates {
		if c := &candidates[i]; !c.overdueAt.IsZero() && !c.Overdue {
			s.RequeueAfter = outcome.Sooner(s.RequeueAfter, c.overdueAt.Sub(s.Now))
		}
	}
}

// candidates returns the migrations that have not ended. Those with a slot are read with the reader. Whether others
// could start is read from the cache: it affects their order, but not the limits.
func (s *Scope) candidates(ctx context.Context, reader client.Reader) ([]Candidate, error) {
	migrations, targets := &v1.VirtualMachineInstanceMigrationList{}, map[types.UID][]metav1.PartialObjectMetadata{}
	var err error
	if reader == s.APIReader {
		err = s.readLive(ctx, migrations, targets)
	} else {
		err = reader.List(ctx, migrations)
	}
	if err != nil {
		return nil, fmt.Errorf("list the migrations that have not ended: %w", err)
	}
	var out []Candidate
	for i := range migrations.Items {
		m := &migrations.Items[i]
		if m.IsFinal() {
			continue
		}
		c := candidate(m)
		if !c.Active {
			active, err := s.hasTarget(ctx, m, targets[m.UID])
			if err != nil {
				return nil, err
			}
			c.Active = active
		}
		if c.Active && c.Node == "" {
			if err := s.complete(ctx, reader, &c); err != nil {
				return nil, err
			}
		}
		if c.Active {
			if err := s.completeActive(ctx, &c); err != nil {
				return nil, err
			}
		}
		out = append(out, c)
	}
	return out, nil
}

// readLive reads the migrations that have not ended from the API server, and the metadata of the Pods with a
// migration's label by its UID.
func (s *Scope) readLive(
	ctx context.Context, migrations *v1.VirtualMachineInstanceMigrationList,
	targets map[types.UID][]metav1.PartialObjectMetadata,
) error {
	err := kit.EachMetadata(ctx, s.APIReader, corev1.SchemeGroupVersion.WithKind("Pod"), metav1.NamespaceAll,
		func(pod *metav1.PartialObjectMetadata) {
			uid := types.UID(pod.Labels[v1.MigrationJobLabel])
			targets[uid] = append(targets[uid], *pod)
		}, client.HasLabels{v1.MigrationJobLabel})
	if err != nil {
		return err
	}
	return kit.EachPage(ctx, s.APIReader, migrations.DeepCopy(), func(page *v1.VirtualMachineInstanceMigrationList) {
		migrations.Items = append(migrations.Items, page.Items...)
	}, kit.UnfinishedMigrations)
}

// completeActive sets Silent and Overdue of an active candidate.
func (s *Scope) completeActive(ctx context.Context, c *Candidate) error {
	vmi, key := &v1.VirtualMachineInstance{}, client.ObjectKey{Namespace: c.of.Namespace, Name: c.of.Spec.VMIName}
	if err := s.Client.Get(ctx, key, vmi); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("get VirtualMachineInstance %s: %w", key, err)
		}
		// The migration is deleted with its VMI, unless another finalizer keeps it.
		c.Overdue = true
		return nil
	}
	c.Silent = vmistatus.Lost(&vmi.Status)
	c.overdueAt = overdueAt(c.of, vmi)
	c.Overdue = !c.overdueAt.IsZero() && !s.Now.Before(c.overdueAt)
	return nil
}

// hasTarget reports whether one of the Pods with a migration's label is its target. The label alone is not sufficient:
// users could exhaust all slots with Pods of their own.
func (s *Scope) hasTarget(
	ctx context.Context, m *v1.VirtualMachineInstanceMigration, pods []metav1.PartialObjectMetadata,
) (bool, error) {
	for i := range pods {
		if !podspec.IsTargetOf(&pods[i], m) {
			continue
		}
		vmi := &v1.VirtualMachineInstance{}
		err := s.Client.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}, vmi)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("get VirtualMachineInstance %s/%s: %w", m.Namespace, m.Spec.VMIName, err)
		}
		// The Pod of a deleted VMI counts until the garbage collector has deleted it.
		if apierrors.IsNotFound(err) || podspec.IsOf(&pods[i], vmi) {
			return true, nil
		}
	}
	return false, nil
}

// complete sets the source's node of a candidate and, if it waits, whether it could start.
func (s *Scope) complete(ctx context.Context, reader client.Reader, c *Candidate) error {
	m, own := c.of, c.UID == s.Migration.UID
	if !c.Active && !own {
		reader = s.Client
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := reader.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}, vmi); err != nil {
		c.Ready = false
		return client.IgnoreNotFound(err)
	}
	c.Node = vmi.Status.NodeName
	if state := stateOf(vmi, m.UID); state != nil {
		c.Node = state.SourceNode
	}
	switch {
	case c.Active:
		return nil
	case own:
		c.Ready = c.Ready && vmi.UID == s.VMI.UID && vmi.DeletionTimestamp == nil && vmi.IsRunning()
		return nil
	}
	siblings, err := s.migrationsOf(ctx, vmi)
	if err != nil {
		return err
	}
	blocked, _, err := s.isBlocked(ctx, m, vmi, siblings)
	c.Ready = c.Ready && !blocked
	return err
}

// createTarget creates the target's Pod.
func (s *Scope) createTarget(ctx context.Context) error {
	pod, err := s.render(ctx)
	if pod == nil || err != nil {
		return err
	}
	podspec.NoteLauncherImage(pod)
	if made, err := s.createState(ctx); err != nil || !made {
		return err
	}
	err = kit.CreatePod(ctx, s.Client, s.APIReader, pod, launcherpod.ConsoleLogContainer)
	switch {
	case apierrors.IsAlreadyExists(err):
		existing, err := podNamed(ctx, s.APIReader, pod.Namespace, pod.Name)
		switch {
		case err != nil || existing == nil:
			return err
		case podspec.IsOf(existing, s.VMI):
			s.Target = existing
		default:
			s.Failure = fmt.Sprintf("Pod %s belongs to another owner: delete it and migrate again.", pod.Name)
			return s.removeState(ctx)
		}
		return nil
	case isQuota(err):
		s.Rejected, s.Message = true, err.Error()
		return nil // A change of the quota triggers another reconciliation.
	case apierrors.IsInvalid(err):
		s.Failure = fmt.Sprintf("Error creating pod: %v", err)
		return s.removeState(ctx)
	case err != nil:
		s.Recorder.Eventf(s.VMI, s.Migration, corev1.EventTypeWarning, ReasonFailedCreate, actionCreate,
			"Error creating pod: %v", err)
		return fmt.Errorf("create the target's Pod %s: %w", pod.Name, err)
	}
	s.Target = pod
	s.event(corev1.EventTypeNormal, ReasonSuccessfulCreate, actionCreate, "Created migration target pod %s", pod.Name)
	return nil
}

// isQuota reports whether a ResourceQuota rejected a request. Its admission plugin reports that only in the message.
func isQuota(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}
