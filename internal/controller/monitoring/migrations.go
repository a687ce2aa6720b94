// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

var (
	unset      = metrics.Describe("vmi_migrations_in_unset_phase", "Migrations that virt-controller has not reconciled yet.")
	pending    = metrics.Describe("vmi_migrations_in_pending_phase", "Migrations that wait for a free slot.")
	scheduling = metrics.Describe("vmi_migrations_in_scheduling_phase", "Migrations whose target Pod does not run yet.")
	running    = metrics.Describe("vmi_migrations_in_running_phase", "Migrations from the target Pod's start to their end.")
	succeeded  = metrics.Describe("vmi_migration_succeeded", "1 for each migration that succeeded and still exists.", "vmi", "vmim", "namespace")
	failed     = metrics.Describe("vmi_migration_failed", "1 for each migration that failed and still exists.", "vmi", "vmim", "namespace")
	started    = metrics.Describe("vmi_migration_start_time_seconds", "When the last migration of a VMI started to transfer, in Unix time.",
		"node", "namespace", "name", "migration_name")
	ended = metrics.Describe("vmi_migration_end_time_seconds", "When the last migration of a VMI ended, in Unix time.",
		"node", "namespace", "name", "migration_name", "status")
	outdated = metrics.Describe("vmi_number_of_outdated", "Guests that run with a launcher other than the one that is configured.")
)

func collectMigrations(migrations []v1.VirtualMachineInstanceMigration, to chan<- prometheus.Metric) {
	in := map[*prometheus.Desc]int{unset: 0, pending: 0, scheduling: 0, running: 0}
	for i := range migrations {
		m := &migrations[i]
		switch m.Status.Phase {
		case v1.MigrationPhaseUnset:
			in[unset]++
		case v1.MigrationPending:
			in[pending]++
		case v1.MigrationScheduling:
			in[scheduling]++
		case v1.MigrationSucceeded:
			to <- metrics.Gauge(succeeded, 1, m.Spec.VMIName, m.Name, m.Namespace)
		case v1.MigrationFailed:
			to <- metrics.Gauge(failed, 1, m.Spec.VMIName, m.Name, m.Namespace)
		default:
			in[running]++
		}
	}
	for d, n := range in {
		to <- metrics.Gauge(d, float64(n))
	}
}

// collectMigrationTimes collects the times of the migrations of VMIs, and counts the VMIs with an outdated launcher.
func collectMigrationTimes(vmis []v1.VirtualMachineInstance, migrations []v1.VirtualMachineInstanceMigration, to chan<- prometheus.Metric) {
	names := make(map[types.UID]string, len(migrations))
	for i := range migrations {
		names[migrations[i].UID] = migrations[i].Name
	}
	old := 0
	for i := range vmis {
		vmi := &vmis[i]
		if isOutdated(vmi) && vmistatus.StageOf(vmi.Status.Phase) == vmistatus.Live {
			old++
		}
		m := vmi.Status.MigrationState
		if m == nil {
			continue
		}
		if m.StartTimestamp != nil {
			to <- metrics.Gauge(started, float64(m.StartTimestamp.Unix()), vmi.Status.NodeName, vmi.Namespace, vmi.Name, names[m.MigrationUID])
		}
		if m.EndTimestamp != nil {
			to <- metrics.Gauge(ended, float64(m.EndTimestamp.Unix()), vmi.Status.NodeName, vmi.Namespace, vmi.Name, names[m.MigrationUID], outcome(m))
		}
	}
	to <- metrics.Gauge(outdated, float64(old))
}

func outcome(m *v1.VirtualMachineInstanceMigrationState) string {
	switch {
	case m.Failed:
		return "failed"
	case m.Completed:
		return "succeeded"
	default:
		return ""
	}
}
