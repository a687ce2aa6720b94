// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package evacuation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/migration/automigration"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonCanceled is the reason of the event that a guest's evacuation is no longer requested.
const ReasonCanceled = "EvacuationCanceled"

const action = "Evacuate"

// namePrefix is the prefix of the names of evacuations' migrations. KubeVirt's.
const namePrefix = "kubevirt-evacuation-"

// Delays after which a node is reconciled again while guests wait for a slot, and while some are stuck. KubeVirt's
// values.
const (
	slotRetry  = 5 * time.Second
	stuckRetry = time.Minute
)

// Settings is all that evacuations read of the cluster's configuration. A change of them enqueues all nodes.
type Settings struct {
	// Default is the cluster's eviction strategy, DrainTaint the taint that requests an evacuation.
	Default    v1.EvictionStrategy
	DrainTaint string
	// PerCluster and PerNode limit the migrations at the same time.
	PerCluster, PerNode int
}

// settingsOf returns the settings of a configuration.
func settingsOf(c *clusterconfig.Config) Settings {
	return Settings{
		Default: c.EvictionStrategy, DrainTaint: *c.Migrations.NodeDrainTaintKey,
		PerCluster: int(*c.Migrations.ParallelMigrationsPerCluster),
		PerNode:    int(*c.Migrations.ParallelOutboundMigrationsPerNode),
	}
}

// Scope is one reconciliation of one node.
type Scope struct {
	// Client reads from the cache and writes to the API server. APIReader reads from the API server.
	Client    client.Client
	APIReader client.Reader
	// Recorder records events.
	Recorder events.EventRecorder
	// Settings are those of the cluster.
	Settings

	// Node is the node that is reconciled.
	Node *corev1.Node
	// Instances are the VMIs on it, in the cache.
	Instances []v1.VirtualMachineInstance
	// Migrations are all migrations in the cache.
	Migrations []v1.VirtualMachineInstanceMigration
}

// Run reconciles the node. It returns the delay after which to requeue, or 0.
func Run(ctx context.Context, s *Scope) (time.Duration, error) {
	history := automigration.NewHistory(s.Migrations)
	guests, err := s.guests(ctx, history)
	if err != nil || len(guests) == 0 {
		return 0, err
	}
	slots, err := s.slots(ctx)
	if err != nil {
		return 0, err
	}
	plan := Decide(s.node(), guests, slots)
	if len(plan.Stay) > 0 {
		// A drain may have started that the cache does not show yet.
		live := &corev1.Node{}
		if err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(s.Node), live); err != nil {
			return 0, client.IgnoreNotFound(err)
		}
		s.Node = live
		plan = Decide(s.node(), guests, slots)
	}
	return s.apply(ctx, history, plan)
}

func (s *Scope) apply(ctx context.Context, history automigration.History, plan Plan) (time.Duration, error) {
	var failed error
	for _, stay := range plan.Stay {
		failed = errors.Join(failed, s.stay(ctx, stay))
	}
	for _, m := range plan.Withdraw {
		failed = errors.Join(failed, s.withdraw(ctx, m))
	}
	for _, stuck := range plan.Stuck {
		s.Recorder.Eventf(stuck.VMI, nil, corev1.EventTypeWarning, automigration.ReasonFailedCreate, action,
			"VirtualMachineInstance is not migrateable: %s", stuck.Why)
	}
	for i := range plan.Migrate {
		failed = errors.Join(failed, s.migrate(ctx, history, &plan.Migrate[i]))
	}
	switch {
	case plan.Waiting > 0:
		return slotRetry, failed
	case len(plan.Stuck) > 0:
		return stuckRetry, failed
	default:
		return 0, failed
	}
}

func (s *Scope) node() Node {
	return Node{Name: s.Node.Name, Cordoned: s.Node.Spec.Unschedulable, Tainted: eviction.HasTaint(s.Node, s.DrainTaint)}
}

// guests returns the VMIs that may be evacuated, each with its migrations.
func (s *Scope) guests(ctx context.Context, history automigration.History) ([]Guest, error) {
	tainted := s.node().Tainted
	var guests []Guest
	for i := range s.Instances {
		vmi := &s.Instances[i]
		migrations := history.Of(vmi)
		if !tainted && !eviction.IsMarked(vmi) && len(migrations) == 0 {
			continue
		}
		pod := &corev1.Pod{}
		key := client.ObjectKey{Namespace: vmi.Namespace, Name: podspec.OwnPodName(vmi)}
		if err := s.Client.Get(ctx, key, pod); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get launcher Pod %s: %w", key, err)
		}
		foreign, err := s.startedByKubeVirt(ctx, vmi)
		if err != nil {
			return nil, err
		}
		if foreign {
			continue // A migration could not start.
		}
		guests = append(guests, Guest{
			VMI: vmi, Strategy: eviction.StrategyOf(vmi, s.Default), ByDrain: podspec.IsOf(pod, vmi) &&
				eviction.ByDrain(&pod.ObjectMeta),
			Migrations: migrations,
		})
	}
	return guests, nil
}

// startedByKubeVirt reports whether a VMI has a launcher Pod of KubeVirt.
func (s *Scope) startedByKubeVirt(ctx context.Context, vmi *v1.VirtualMachineInstance) (bool, error) {
	pods := &corev1.PodList{}
	if err := s.Client.List(ctx, pods, client.InNamespace(vmi.Namespace),
		client.MatchingFields{kit.CreatedByIndex: string(vmi.UID)}); err != nil {
		return false, fmt.Errorf("list the Pods of VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(vmi), err)
	}
	return slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
		return podspec.IsOf(&pod, vmi) && podspec.StartedByKubeVirt(&pod)
	}), nil
}

// slots counts the free slots. A migration from a lost node uses none of the cluster's slots, and neither does one
// whose VMI was deleted, because a finalizer may keep it forever.
func (s *Scope) slots(ctx context.Context) (Slots, error) {
	here := map[client.ObjectKey]bool{}
	for i := range s.Instances {
		here[client.ObjectKeyFromObject(&s.Instances[i])] = true
	}
	failures := map[client.ObjectKey]int{}
	for i := range s.Migrations {
		m := &s.Migrations[i]
		if _, evacuates := m.Annotations[v1.EvacuationMigrationAnnotation]; evacuates &&
			m.Status.Phase == v1.MigrationFailed {
			failures[client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}]++
		}
	}
	slots := Slots{Cluster: s.PerCluster, Node: s.PerNode, Namespaces: map[string]bool{}}
	for i := range s.Migrations {
		m := &s.Migrations[i]
		vmi := client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}
		if !UsesSlot(m, failures[vmi]) {
			continue
		}
		lost, err := vmistatus.IsGoneOrLost(ctx, s.Client, vmi)
		if err != nil {
			return Slots{}, err
		}
		if !lost {
			slots.Cluster--
			slots.Namespaces[m.Namespace] = true
		}
		if here[vmi] {
			slots.Node--
		}
	}
	return slots, nil
}

// migrate creates the migration of a guest, if its evacuation is still requested.
func (s *Scope) migrate(ctx context.Context, history automigration.History, g *Guest) error {
	creator := automigration.Creator{Client: s.Client, APIReader: s.APIReader, Recorder: s.Recorder, Action: action,
		Prefix: namePrefix}
	return creator.Migrate(ctx, history, g.VMI,
		func(vmi *v1.VirtualMachineInstance, m *v1.VirtualMachineInstanceMigration) bool {
			priority := v1.PrioritySystemCritical
			if eviction.IsMarked(vmi) && vmi.Annotations[v1.EvictionSourceAnnotation] == eviction.SourceDescheduler {
				priority = v1.PrioritySystemMaintenance
			}
			m.Annotations = map[string]string{v1.EvacuationMigrationAnnotation: s.Node.Name}
			m.Spec.Priority = ptr.To(priority)
			return eviction.IsMarked(vmi) || s.node().Tainted
		})
}

// stay removes the mark of a VMI.
func (s *Scope) stay(ctx context.Context, stay Stay) error {
	after := stay.VMI.DeepCopy()
	eviction.Unmark(&after.Status)
	if _, err := vmistatus.Patch(ctx, s.Client, vmistatus.Controller, stay.VMI, after); err != nil {
		return client.IgnoreNotFound(err)
	}
	s.Recorder.Eventf(stay.VMI, nil, corev1.EventTypeNormal, ReasonCanceled, action,
		"The guest no longer has to be evacuated from node %s: %s", s.Node.Name, stay.Why)
	return nil
}

// withdraw deletes a migration that has not started. If it has changed since it was read, the deletion fails and the
// next reconciliation decides again.
func (s *Scope) withdraw(ctx context.Context, m *v1.VirtualMachineInstanceMigration) error {
	return kit.Delete(ctx, s.Client, m, kit.Unchanged(m))
}
