// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/migrationpolicy"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// handOver tells the agents of both nodes to migrate the guest, as soon as the target's Pod runs. From then on they and the VMI's
// reconciler say what becomes of it.
func handOver(ctx context.Context, s *Scope) error {
	ready := s.Failure == "" && s.state() == nil && !s.deleting() && s.Target != nil && s.Target.DeletionTimestamp == nil &&
		virtualmachineinstance.Running(s.Target)
	if !ready || !vmistatus.NamesDestinations(s.VMI) || !s.VMI.IsRunning() || s.VMI.DeletionTimestamp != nil || !s.alive(s.Own) || s.Own.Spec.NodeName != s.VMI.Status.NodeName {
		return nil
	}
	// The status forgets what is replaced in it: whether anything is left is not for a cache to say.
	if settled, err := settled(ctx, s.Live, s.VMI, s.Own); err != nil || !settled {
		return err
	}
	state, err := s.newState(ctx)
	if err != nil {
		return err
	}
	after := s.VMI.DeepCopy()
	after.Status.MigrationState = state
	if _, err := vmistatus.Patch(ctx, s.Client, vmistatus.Controller, s.VMI, after); err != nil {
		return fmt.Errorf("hand the migration over to the agents: %w", err)
	}
	s.VMI, s.HandedOverNow = after, true
	s.event(corev1.EventTypeNormal, ReasonSuccessfulHandOver, actionHandOver, "Migration target pod is ready for preparation by virt-handler.")
	return nil
}

// newState is all that the agents are told.
func (s *Scope) newState(ctx context.Context) (*v1.VirtualMachineInstanceMigrationState, error) {
	configuration, name, err := s.configuration(ctx)
	if err != nil {
		return nil, err
	}
	return &v1.VirtualMachineInstanceMigrationState{
		SourcePersistentStatePVCName: virtualmachineinstance.StateClaim(s.Own),
		TargetPersistentStatePVCName: virtualmachineinstance.StateClaim(s.Target),

		MigrationUID:             s.Migration.UID,
		SourceNode:               s.VMI.Status.NodeName,
		SourcePod:                s.Own.Name,
		TargetNode:               s.Target.Spec.NodeName,
		TargetPod:                s.Target.Name,
		MigrationPolicyName:      name,
		VMIMConfigurationOptions: configuration,
		MigrationNetworkType:     s.network(),
		TargetMemoryOverhead:     ptr.To(podspec.MemoryOverhead(s.VMI, s.Config)),
	}, nil
}

// network is the one that the guest is sent over. A Pod that was made before there was a network for migrations is not on it, and
// none can be added: such a guest moves over the network of Pods, once, and its new Pod is on both.
func (s *Scope) network() v1.MigrationNetworkType {
	if s.Config.MigrationNetwork.Name == "" {
		return v1.Pod
	}
	for _, pod := range []*corev1.Pod{s.Own, s.Target} {
		if !podspec.OnMigrationNetwork(pod) {
			s.event(corev1.EventTypeWarning, ReasonNotOnNetwork, actionHandOver, "The guest moves over the network of Pods: launcher Pod %s was made "+
				"when there was no NetworkAttachmentDefinition %s, or before configuration.migrations.network named it", pod.Name, s.Config.MigrationNetwork)
			return v1.Pod
		}
	}
	return v1.Migration
}

// configuration is that of the migration, and the name of the policy that it is from, if it is.
func (s *Scope) configuration(ctx context.Context) (*v1.VMIMConfigurationOptions, *string, error) {
	policy, err := s.policy(ctx)
	if err != nil {
		return nil, nil, err
	}
	configuration, name := migrationpolicy.Resolve(s.Migrations, policy)
	return configuration, name, nil
}

// policy is the MigrationPolicy that holds for the VMI, or nil.
func (s *Scope) policy(ctx context.Context) (*v1alpha1.MigrationPolicy, error) {
	policies := &v1alpha1.MigrationPolicyList{}
	if err := s.Live.List(ctx, policies); err != nil {
		return nil, fmt.Errorf("list MigrationPolicies: %w", err)
	}
	if len(policies.Items) == 0 {
		return nil, nil
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := s.Live.Get(ctx, client.ObjectKey{Name: s.VMI.Namespace}, namespace); err != nil {
		return nil, fmt.Errorf("get Namespace %s: %w", s.VMI.Namespace, err)
	}
	return migrationpolicy.Choose(policies.Items, s.VMI.Labels, namespace.Labels), nil
}

// requestAbort tells the agents that the guest shall stay, once the migration is deleted.
func requestAbort(ctx context.Context, s *Scope) error {
	m := s.state()
	if m == nil || !s.deleting() || m.AbortRequested || vmistatus.HasEnded(m) || s.ended() || s.VMI.Status.NodeName == m.TargetNode {
		return nil
	}
	after := s.VMI.DeepCopy()
	after.Status.MigrationState.AbortRequested = true
	if _, err := vmistatus.Patch(ctx, s.Client, vmistatus.Controller, s.VMI, after); err != nil {
		return fmt.Errorf("request that the migration is aborted: %w", err)
	}
	s.VMI = after
	s.event(corev1.EventTypeNormal, ReasonSuccessfulAbort, actionAbort, "Migration is ready to be canceled by virt-handler.")
	return nil
}
