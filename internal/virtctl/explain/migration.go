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
	"github.com/vireo-project/vireo/internal/component/eventtime"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
)

// KubeVirt's default limits for parallel migrations.
const (
	defaultPerCluster uint32 = 5
	defaultPerNode    uint32 = 2
)

// evacuation reports whether the guest has to be evacuated, whether a drain waits for it, and whether it migrates.
func evacuation(s *Snapshot) []Finding {
	if s.VMI == nil || !s.VMI.IsRunning() || s.VMI.DeletionTimestamp != nil {
		return nil
	}
	strategy, source := eviction.StrategyOf(s.VMI, s.defaultStrategy()), s.VMI.Status.NodeName
	obstacle := eviction.Obstacle(s.VMI, true)
	cordoned := s.Node != nil && s.Node.Spec.Unschedulable
	switch marked := eviction.IsMarked(s.VMI); {
	case marked && strategy == v1.EvictionStrategyExternal:
		return one(Finding{
			What: fmt.Sprintf(
				"The guest is to be evacuated from node %s by an external controller (evictionStrategy External).", source),
			Do:       "Check that controller, or cancel the evacuation:",
			Commands: []string{s.cancel()},
		})
	case strategy == v1.EvictionStrategyLiveMigrate && obstacle != "" && (marked || cordoned):
		return one(Finding{
			What: fmt.Sprintf("A drain of node %s waits for this guest, which cannot migrate (evictionStrategy LiveMigrate).",
				source),
			Why: []string{short(obstacle)},
			Do: "Remove the reason, or stop the guest for the drain. With evictionStrategy LiveMigrateIfPossible " +
				"a guest that cannot migrate is shut down by drains:",
			Commands: []string{fmt.Sprintf("%s stop %s --namespace %s", s.Program, s.Name, s.Namespace)},
		})
	case marked && eviction.Migrates(strategy):
		return one(s.evacuating(source))
	case s.migration() != nil:
		return one(s.migrating(s.migration(), fmt.Sprintf("The guest migrates from node %s", source)))
	default:
		return nil
	}
}

// volumeMigration reports that volumes are to be migrated to other claims although no migration was requested.
func volumeMigration(s *Snapshot) []Finding {
	if s.VMI == nil || !s.VMI.IsRunning() || s.VMI.DeletionTimestamp != nil || s.migration() != nil ||
		s.Hidden[AreaMigrations] ||
		s.condition(v1.VirtualMachineInstanceVolumesChange).Status != corev1.ConditionTrue {
		return nil
	}
	f := Finding{
		What:     "Volumes of the guest are to be migrated to other claims with the guest's next migration.",
		Do:       "Migrate it, or restore the former claims in the spec to cancel:",
		Commands: []string{fmt.Sprintf("%s migrate %s --namespace %s", s.Program, s.Name, s.Namespace)},
	}
	for _, moved := range s.VMI.Status.MigratedVolumes {
		if from, to := moved.SourcePVCInfo, moved.DestinationPVCInfo; from != nil && to != nil {
			f.Why = append(f.Why, fmt.Sprintf("Volume %s: from claim %s to claim %s.", moved.VolumeName,
				from.ClaimName, to.ClaimName))
		}
	}
	if kv := s.Install.KubeVirt; kv != nil && slices.Contains(kv.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods,
		v1.WorkloadUpdateMethodLiveMigrate) {
		f.Do, f.Commands = "Nothing: it is migrated automatically.", nil
	} else if kv != nil {
		f.Why = append(f.Why, "The workloadUpdateMethods of the KubeVirt object do not contain LiveMigrate, so that it is not migrated automatically.")
	}
	return one(f)
}

// migration returns the unfinished migration, or nil.
func (s *Snapshot) migration() *v1.VirtualMachineInstanceMigration {
	for i := range s.Migrations {
		if !s.Migrations[i].IsFinal() {
			return &s.Migrations[i]
		}
	}
	return nil
}

// migrating returns the finding about an unfinished migration.
func (s *Snapshot) migrating(m *v1.VirtualMachineInstanceMigration, what string) Finding {
	f := Finding{
		Good: true, What: fmt.Sprintf("%s: migration %s is %s.", what, m.Name, phaseOf(m)),
		Do: "Watch it:", Commands: []string{fmt.Sprintf("kubectl --namespace %s get vmim %s --watch", s.Namespace, m.Name)},
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
	why := fmt.Sprintf("The target is being prepared on node %s.", state.TargetNode)
	if state.StartTimestamp != nil {
		why = fmt.Sprintf("The transfer to node %s has been running for %s (%s).", state.TargetNode,
			age(s.Now, state.StartTimestamp.Time), cmp.Or(state.Mode, v1.MigrationPreCopy))
	}
	f.Why = append(f.Why, why)
	if state.StartTimestamp != nil {
		f.Why = append(f.Why, s.progress(state.StartTimestamp.Time)...)
	}
	if state.MigrationPolicyName != nil {
		f.Why = append(f.Why, fmt.Sprintf("MigrationPolicy %s applies.", *state.MigrationPolicyName))
	}
	if state.AbortRequested {
		f.Good, f.Why = false, append(f.Why, "It is being aborted: the guest stays on its node.")
	}
	return f
}

// progressEvents is the number of progress events that are shown. The latest ones contain the current rates.
const progressEvents = 3

// startMessage is the message of the event at the start of a transfer, which is not shown. KubeVirt's text.
const startMessage = "VirtualMachineInstance is migrating."

// progress returns the latest events of the transfer that started at this time: the rates, and what the source's agent
// does to complete it. A transfer that completes without such measures has no events.
func (s *Snapshot) progress(start time.Time) []string {
	var out []string
	for i := range s.Events {
		e := &s.Events[i]
		if e.InvolvedObject.Kind != "VirtualMachineInstance" || e.Reason != string(v1.Migrating) ||
			eventtime.LastObserved(e).Before(start) || e.Message == startMessage {
			continue
		}
		out = append(out, fmt.Sprintf("%s ago: %s", age(s.Now, eventtime.LastObserved(e)), short(e.Message)))
		if len(out) == progressEvents {
			break
		}
	}
	return out
}

// evacuating returns the finding about a guest that is to be evacuated by a migration.
func (s *Snapshot) evacuating(source string) Finding {
	if m := s.migration(); m != nil {
		return s.migrating(m, fmt.Sprintf("The guest is being evacuated from node %s", source))
	}
	f := Finding{
		What:     fmt.Sprintf("The guest is to be evacuated from node %s, and its migration has not started.", source),
		Why:      s.limits(),
		Do:       "Nothing: it is migrated automatically. To cancel the evacuation:",
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

// limits returns the limits for parallel migrations.
func (s *Snapshot) limits() []string {
	cluster, node := defaultPerCluster, defaultPerNode
	if kv := s.Install.KubeVirt; kv != nil && kv.Spec.Configuration.MigrationConfiguration != nil {
		m := kv.Spec.Configuration.MigrationConfiguration
		cluster, node = ptr.Deref(m.ParallelMigrationsPerCluster,
			cluster), ptr.Deref(m.ParallelOutboundMigrationsPerNode, node)
	}
	return []string{fmt.Sprintf("Limits for parallel migrations: %d from a node, %d in the cluster.", node, cluster)}
}

// defaultStrategy returns the cluster's eviction strategy.
func (s *Snapshot) defaultStrategy() v1.EvictionStrategy {
	if kv := s.Install.KubeVirt; kv != nil {
		return ptr.Deref(kv.Spec.Configuration.EvictionStrategy, v1.EvictionStrategyNone)
	}
	return v1.EvictionStrategyNone
}
