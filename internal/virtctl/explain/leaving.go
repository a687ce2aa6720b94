// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/eviction"
)

// KubeVirt's limits of migrations at the same time, where the KubeVirt object sets none.
const (
	perCluster uint32 = 5
	perNode    uint32 = 2
)

// leaving: the guest has to leave its node, and a drain may wait for it.
func leaving(s *Snapshot) []Finding {
	if s.VMI == nil || !s.VMI.IsRunning() || s.VMI.DeletionTimestamp != nil {
		return nil
	}
	strategy, host := eviction.StrategyOf(s.VMI, s.defaultStrategy()), s.VMI.Status.NodeName
	obstacle := eviction.Obstacle(s.VMI, true)
	cordoned := s.Node != nil && s.Node.Spec.Unschedulable
	switch marked := eviction.IsMarked(s.VMI); {
	case marked && strategy == v1.EvictionStrategyExternal:
		return one(Finding{
			What:     fmt.Sprintf("The guest has to leave node %s, and another controller than KubeVirt's is to see to that (evictionStrategy External).", host),
			Do:       "See to that controller, or let the guest stay:",
			Commands: []string{s.cancel()},
		})
	case strategy == v1.EvictionStrategyLiveMigrate && obstacle != "" && (marked || cordoned):
		return one(Finding{
			What: fmt.Sprintf("A drain of node %s waits for this guest, which is to migrate (evictionStrategy LiveMigrate) and cannot.", host),
			Why:  []string{short(obstacle)},
			Do: "Remove what ties the guest to its node, or stop it for the drain. With evictionStrategy LiveMigrateIfPossible " +
				"a guest that cannot migrate is shut down by drains:",
			Commands: []string{fmt.Sprintf("%s stop %s --namespace %s", s.Program, s.Name, s.Namespace)},
		})
	case marked && eviction.Migrates(strategy):
		return one(s.onItsWay(host))
	case s.migration() != nil:
		return one(s.moving(s.migration(), fmt.Sprintf("The guest is to leave node %s", host)))
	default:
		return nil
	}
}

// volumes: other claims wait for a migration that nobody has asked for.
func volumes(s *Snapshot) []Finding {
	if s.VMI == nil || !s.VMI.IsRunning() || s.VMI.DeletionTimestamp != nil || s.migration() != nil || s.Hidden[AreaMigrations] ||
		s.condition(v1.VirtualMachineInstanceVolumesChange).Status != corev1.ConditionTrue {
		return nil
	}
	f := Finding{
		What: "Disks of the guest are to move to other claims, and wait for a migration.",
		Do:   "Migrate it, or name the former claims again to let them stay:", Commands: []string{fmt.Sprintf("%s migrate %s --namespace %s", s.Program, s.Name, s.Namespace)},
	}
	for _, moved := range s.VMI.Status.MigratedVolumes {
		if from, to := moved.SourcePVCInfo, moved.DestinationPVCInfo; from != nil && to != nil {
			f.Why = append(f.Why, fmt.Sprintf("Volume %s is on claim %s and goes to %s.", moved.VolumeName, from.ClaimName, to.ClaimName))
		}
	}
	if kv := s.Install.KubeVirt; kv != nil && slices.Contains(kv.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods, v1.WorkloadUpdateMethodLiveMigrate) {
		f.Do, f.Commands = "Nothing: it is migrated by itself.", nil
	} else if kv != nil {
		f.Why = append(f.Why, "The KubeVirt object has no LiveMigrate among its workloadUpdateMethods, so that nobody migrates it unasked.")
	}
	return one(f)
}

// migration is the one that is not over, if there is one.
func (s *Snapshot) migration() *v1.VirtualMachineInstanceMigration {
	for i := range s.Migrations {
		if phase := s.Migrations[i].Status.Phase; phase != v1.MigrationSucceeded && phase != v1.MigrationFailed {
			return &s.Migrations[i]
		}
	}
	return nil
}

// moving is about a migration that is not over.
func (s *Snapshot) moving(m *v1.VirtualMachineInstanceMigration, what string) Finding {
	f := Finding{
		Good: true, What: fmt.Sprintf("%s: migration %s is %s.", what, m.Name, phaseOf(m)),
		Do: "Follow it:", Commands: []string{fmt.Sprintf("kubectl --namespace %s get vmim %s --watch", s.Namespace, m.Name)},
	}
	if m.IsQueued() {
		f.Good, f.Why = false, s.limits()
	}
	for _, c := range m.Status.Conditions {
		f.Good, f.Why = false, append(f.Why, fmt.Sprintf("%s: %s", c.Type, short(c.Message)))
	}
	state := s.VMI.Status.MigrationState
	if state == nil || state.MigrationUID != m.UID || state.Completed {
		return f
	}
	why := fmt.Sprintf("Node %s makes ready for it.", state.TargetNode)
	if state.StartTimestamp != nil {
		why = fmt.Sprintf("It has been copied to node %s for %s (%s).", state.TargetNode, age(s.Now, state.StartTimestamp.Time), cmp.Or(state.Mode, v1.MigrationPreCopy))
	}
	f.Why = append(f.Why, why)
	if state.StartTimestamp != nil {
		f.Why = append(f.Why, s.told(state.StartTimestamp.Time)...)
	}
	if state.MigrationPolicyName != nil {
		f.Why = append(f.Why, fmt.Sprintf("MigrationPolicy %s says how.", *state.MigrationPolicyName))
	}
	if state.AbortRequested {
		f.Good, f.Why = false, append(f.Why, "It is being aborted: the guest stays where it is.")
	}
	return f
}

// progressEvents is how many of a copy's events are shown: the last ones have the newest figures.
const progressEvents = 3

// begins is what the event of a copy's beginning says, which is known. KubeVirt's words.
const begins = "VirtualMachineInstance is migrating."

// told is what the source's agent has told of a copy since it began: what it does to bring it to an end, and by which rates. How far
// a copy is that goes well is written nowhere, as it would be another write every few seconds.
func (s *Snapshot) told(began time.Time) []string {
	var out []string
	for i := range s.Events {
		e := &s.Events[i]
		if e.InvolvedObject.Kind != "VirtualMachineInstance" || e.Reason != string(v1.Migrating) || eventTime(e).Before(began) || e.Message == begins {
			continue
		}
		out = append(out, fmt.Sprintf("%s ago: %s", age(s.Now, eventTime(e)), short(e.Message)))
		if len(out) == progressEvents {
			break
		}
	}
	return out
}

// onItsWay is about a guest that is to leave by a migration.
func (s *Snapshot) onItsWay(host string) Finding {
	if m := s.migration(); m != nil {
		return s.moving(m, fmt.Sprintf("The guest is leaving node %s", host))
	}
	f := Finding{
		What:     fmt.Sprintf("The guest has to leave node %s, and waits for its turn to migrate.", host),
		Why:      s.limits(),
		Do:       "Nothing: it is moved by itself. To let it stay instead:",
		Commands: []string{s.cancel()},
	}
	for i := range s.Migrations {
		if m := &s.Migrations[i]; m.Status.Phase == v1.MigrationFailed {
			why := "its reason is not known"
			if m.Status.MigrationState != nil && m.Status.MigrationState.FailureReason != "" {
				why = short(m.Status.MigrationState.FailureReason)
			}
			f.Why = append(f.Why, fmt.Sprintf("Migration %s failed: %s", m.Name, why))
			break
		}
	}
	return f
}

func phaseOf(m *v1.VirtualMachineInstanceMigration) v1.VirtualMachineInstanceMigrationPhase {
	if m.Status.Phase == v1.MigrationPhaseUnset {
		return v1.MigrationPending
	}
	return m.Status.Phase
}

func (s *Snapshot) cancel() string {
	return fmt.Sprintf("%s evacuate-cancel vmi %s --namespace %s", s.Program, s.Name, s.Namespace)
}

// limits say how many migrations there may be at the same time.
func (s *Snapshot) limits() []string {
	cluster, node := perCluster, perNode
	if kv := s.Install.KubeVirt; kv != nil && kv.Spec.Configuration.MigrationConfiguration != nil {
		m := kv.Spec.Configuration.MigrationConfiguration
		cluster, node = ptr.Deref(m.ParallelMigrationsPerCluster, cluster), ptr.Deref(m.ParallelOutboundMigrationsPerNode, node)
	}
	return []string{fmt.Sprintf("Limits of migrations at the same time: %d away from a node, %d in the cluster.", node, cluster)}
}

// defaultStrategy is the cluster's.
func (s *Snapshot) defaultStrategy() v1.EvictionStrategy {
	if kv := s.Install.KubeVirt; kv != nil {
		return ptr.Deref(kv.Spec.Configuration.EvictionStrategy, v1.EvictionStrategyNone)
	}
	return v1.EvictionStrategyNone
}
