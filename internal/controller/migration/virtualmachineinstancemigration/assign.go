// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/migration/policy"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// plugPatience is how long a migration whose target's Pod runs waits for volumes that are being plugged or unplugged.
const plugPatience = time.Minute

// assign assigns the target's Pod to its agent as soon as it runs, by writing the migration to the VMI's status. From
// then on the agents and the VMI's reconciler carry the migration out.
func assign(ctx context.Context, s *Scope) error {
	ready := s.Failure == "" && s.state() == nil && !s.deleting() && s.Target != nil &&
		s.Target.DeletionTimestamp == nil &&
		podstate.Running(s.Target)
	if !ready || !vmistatus.NamesDestinations(s.VMI) || !s.VMI.IsRunning() || s.VMI.DeletionTimestamp != nil ||
		!s.alive(s.Own) || s.Own.Spec.NodeName != s.VMI.Status.NodeName {
		return nil
	}
	if s.waitsForSnapshot() || s.waitsForBackup() || s.waitsForPlugs() {
		return nil
	}
	// Assigning replaces status.migrationState. Whether the earlier migration is cleaned up must not be decided from the
	// cache, which may be stale.
	if cleanedUp, err := cleanedUp(ctx, s.APIReader, s.VMI, s.Own); err != nil || !cleanedUp {
		return err
	}
	state, err := s.newState(ctx)
	if err != nil {
		return err
	}
	after := s.VMI.DeepCopy()
	after.Status.MigrationState = state
	if _, err := vmistatus.Patch(ctx, s.Client, vmistatus.Controller, s.VMI, after); err != nil {
		return fmt.Errorf("assign the migration to the agents: %w", err)
	}
	s.VMI = after
	s.event(corev1.EventTypeNormal, ReasonSuccessfulHandOver, actionAssign,
		"Migration target pod is ready for preparation by virt-handler.")
	return nil
}

// waitsForPlugs reports whether a hotplugged volume is being plugged or unplugged. The target's agent prepares the
// disks that are in the status and wanted, and could not prepare another one that the guest has. Agents plug and unplug
// nothing during a migration. The VMI changes when they have. If that takes too long, as with an attachment Pod that
// does not start, the migration is assigned anyway: a volume that the guest does not have yet is plugged later, and a
// guest that does not release one fails to migrate.
func (s *Scope) waitsForPlugs() bool {
	volumes := s.VMI.Status.VolumeStatus
	changing := slices.IndexFunc(volumes, func(v v1.VolumeStatus) bool { return s.isPlugging(&v) || s.isUnplugging(&v) })
	if changing < 0 {
		return false
	}
	// It is the time at which this process observed that the Pod runs: the clocks of nodes may differ. It is written after
	// this.
	since := enteredAt(&s.Migration.Status, v1.MigrationScheduled)
	if since.IsZero() {
		since = s.Now
	}
	wait := since.Add(plugPatience).Sub(s.Now)
	if wait <= 0 {
		return false
	}
	s.RequeueAfter = outcome.Sooner(s.RequeueAfter, wait)
	change := "plugged"
	if s.isUnplugging(&volumes[changing]) {
		change = "unplugged"
	}
	s.Recorder.Eventf(s.VMI, s.Migration, corev1.EventTypeNormal, ReasonWaitsForVolumes, actionWait,
		"The migration %s waits until the volume %s is %s", s.Migration.Name, volumes[changing].Name, change)
	return true
}

// isPlugging reports whether the guest may have, or get, a volume that the agent has yet to report.
func (s *Scope) isPlugging(v *v1.VolumeStatus) bool {
	return vmistatus.IsHotplugged(v) && v.Phase == v1.HotplugVolumeAttachedToNode && vmistatus.IsWanted(s.VMI, v)
}

// isUnplugging reports whether the guest may still have a volume that is not wanted any more.
func (s *Scope) isUnplugging(v *v1.VolumeStatus) bool {
	switch v.Phase {
	case v1.HotplugVolumeAttachedToNode, v1.HotplugVolumeMounted, v1.VolumeReady:
		return vmistatus.IsHotplugged(v) && !vmistatus.IsWanted(s.VMI, v)
	default:
		return false
	}
}

// newState returns the status.migrationState from which the agents start.
func (s *Scope) newState(ctx context.Context) (*v1.VirtualMachineInstanceMigrationState, error) {
	configuration, name, err := s.configuration(ctx)
	if err != nil {
		return nil, err
	}
	return &v1.VirtualMachineInstanceMigrationState{
		SourcePersistentStatePVCName: podspec.StateClaim(s.Own),
		TargetPersistentStatePVCName: podspec.StateClaim(s.Target),

		MigrationUID:             s.Migration.UID,
		SourceNode:               s.VMI.Status.NodeName,
		SourcePod:                s.Own.Name,
		TargetNode:               s.Target.Spec.NodeName,
		TargetPod:                s.Target.Name,
		MigrationPolicyName:      name,
		VMIMConfigurationOptions: configuration,
		MigrationNetworkType:     s.network(),
		TargetMemoryOverhead: ptr.To(
			podspec.MemoryOverhead(resize.With(s.VMI, resize.ForTarget(s.VMI, s.Own)), s.Config)),
	}, nil
}

// network returns the network for the transfer. A Pod that was created before a network for migrations was configured
// cannot be attached to it. So its guest migrates over the Pod network once, and the target's Pod is attached to both
// networks.
func (s *Scope) network() v1.MigrationNetworkType {
	if s.Config.MigrationNetwork.Name == "" {
		return v1.Pod
	}
	for _, pod := range []*corev1.Pod{s.Own, s.Target} {
		if !podspec.OnMigrationNetwork(pod) {
			s.event(corev1.EventTypeWarning, ReasonNotOnNetwork, actionAssign,
				"The guest migrates over the Pod network: launcher Pod %s was created "+
					"when there was no NetworkAttachmentDefinition %s, or before configuration.migrations.network named it", pod.Name,
				s.Config.MigrationNetwork)
			return v1.Pod
		}
	}
	return v1.Migration
}

// configuration returns the migration's configuration, and the name of the MigrationPolicy that applies, if any.
func (s *Scope) configuration(ctx context.Context) (*v1.VMIMConfigurationOptions, *string, error) {
	chosen, err := s.policy(ctx)
	if err != nil {
		return nil, nil, err
	}
	configuration, name := policy.Resolve(s.Migrations, chosen)
	return configuration, name, nil
}

// policy returns the MigrationPolicy that applies to the VMI, or nil.
func (s *Scope) policy(ctx context.Context) (*v1alpha1.MigrationPolicy, error) {
	policies := &v1alpha1.MigrationPolicyList{}
	if err := s.APIReader.List(ctx, policies); err != nil {
		return nil, fmt.Errorf("list MigrationPolicies: %w", err)
	}
	if len(policies.Items) == 0 {
		return nil, nil
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := s.APIReader.Get(ctx, client.ObjectKey{Name: s.VMI.Namespace}, namespace); err != nil {
		return nil, fmt.Errorf("get Namespace %s: %w", s.VMI.Namespace, err)
	}
	return policy.Choose(policies.Items, s.VMI.Labels, namespace.Labels), nil
}

// requestAbort requests from the agents that the source keeps the guest if the migration is being deleted.
func requestAbort(ctx context.Context, s *Scope) error {
	m := s.state()
	if m == nil || !s.deleting() || m.AbortRequested || vmistatus.HasEnded(m) || s.ended() ||
		s.VMI.Status.NodeName == m.TargetNode {
		return nil
	}
	after := s.VMI.DeepCopy()
	after.Status.MigrationState.AbortRequested = true
	if _, err := vmistatus.Patch(ctx, s.Client, vmistatus.Controller, s.VMI, after); err != nil {
		return fmt.Errorf("request that the migration is aborted: %w", err)
	}
	s.VMI = after
	s.event(corev1.EventTypeNormal, ReasonSuccessfulAbort, actionAbort,
		"Migration is ready to be canceled by virt-handler.")
	return nil
}
