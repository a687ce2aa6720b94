// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package monitoring contains virt-controller's metrics of migrations and outdated launchers. Names, labels and meanings are KubeVirt's
// (docs/observability/metrics.md). States are counted from the cache at each scrape: a counter would be wrong after a restart.
package monitoring

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	unset      = describe("kubevirt_vmi_migrations_in_unset_phase", "Migrations that virt-controller has not reconciled yet.")
	pending    = describe("kubevirt_vmi_migrations_in_pending_phase", "Migrations that wait for a free slot.")
	scheduling = describe("kubevirt_vmi_migrations_in_scheduling_phase", "Migrations whose target Pod does not run yet.")
	running    = describe("kubevirt_vmi_migrations_in_running_phase", "Migrations from the target Pod's start to their end.")
	succeeded  = describe("kubevirt_vmi_migration_succeeded", "1 for each migration that succeeded and still exists.", "vmi", "vmim", "namespace")
	failed     = describe("kubevirt_vmi_migration_failed", "1 for each migration that failed and still exists.", "vmi", "vmim", "namespace")
	started    = describe("kubevirt_vmi_migration_start_time_seconds", "When the last migration of a VMI started to transfer, in Unix time.",
		"node", "namespace", "name", "migration_name")
	ended = describe("kubevirt_vmi_migration_end_time_seconds", "When the last migration of a VMI ended, in Unix time.",
		"node", "namespace", "name", "migration_name", "status")
	outdated = describe("kubevirt_vmi_number_of_outdated", "Guests that run with a launcher other than the one that is configured.")
)

// scrapeTimeout is how long reading the cache may take.
const scrapeTimeout = 5 * time.Second

// Collector computes the metrics from the objects of a cache.
type Collector struct {
	// Reader is the cache.
	Reader client.Reader
	// Elected is closed when this process is the leader. Only the leader has metrics: those of two processes would add up.
	Elected <-chan struct{}
}

// Describe is part of prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{unset, pending, scheduling, running, succeeded, failed, started, ended, outdated} {
		to <- d
	}
}

// Collect is part of prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	select {
	case <-c.Elected:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	migrations, instances := &v1.VirtualMachineInstanceMigrationList{}, &v1.VirtualMachineInstanceList{}
	for _, list := range []client.ObjectList{migrations, instances} {
		if err := c.Reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			to <- prometheus.NewInvalidMetric(unset, fmt.Errorf("list %T: %w", list, err))
			return
		}
	}
	collectMigrations(migrations.Items, to)
	collectInstances(instances.Items, migrations.Items, to)
}

func gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

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
			to <- gauge(succeeded, 1, m.Spec.VMIName, m.Name, m.Namespace)
		case v1.MigrationFailed:
			to <- gauge(failed, 1, m.Spec.VMIName, m.Name, m.Namespace)
		default:
			in[running]++
		}
	}
	for d, n := range in {
		to <- gauge(d, float64(n))
	}
}

func collectInstances(instances []v1.VirtualMachineInstance, migrations []v1.VirtualMachineInstanceMigration, to chan<- prometheus.Metric) {
	names := make(map[types.UID]string, len(migrations))
	for i := range migrations {
		names[migrations[i].UID] = migrations[i].Name
	}
	old := 0
	for i := range instances {
		vmi := &instances[i]
		if _, is := vmi.Labels[v1.OutdatedLauncherImageLabel]; is && vmistatus.StageOf(vmi.Status.Phase) == vmistatus.Live {
			old++
		}
		m := vmi.Status.MigrationState
		if m == nil {
			continue
		}
		if m.StartTimestamp != nil {
			to <- gauge(started, float64(m.StartTimestamp.Unix()), vmi.Status.NodeName, vmi.Namespace, vmi.Name, names[m.MigrationUID])
		}
		if m.EndTimestamp != nil {
			to <- gauge(ended, float64(m.EndTimestamp.Unix()), vmi.Status.NodeName, vmi.Namespace, vmi.Name, names[m.MigrationUID], outcome(m))
		}
	}
	to <- gauge(outdated, float64(old))
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
