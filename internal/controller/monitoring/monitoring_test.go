// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// names contains all metrics of the collector.
var names = []string{
	"kubevirt_vmi_migrations_in_unset_phase", "kubevirt_vmi_migrations_in_pending_phase", "kubevirt_vmi_migrations_in_scheduling_phase",
	"kubevirt_vmi_migrations_in_running_phase", "kubevirt_vmi_migration_succeeded", "kubevirt_vmi_migration_failed",
	"kubevirt_vmi_migration_start_time_seconds", "kubevirt_vmi_migration_end_time_seconds", "kubevirt_vmi_number_of_outdated",
}

// cached is a cache that returns these objects, or this error.
type cached struct {
	client.Reader
	migrations []v1.VirtualMachineInstanceMigration
	instances  []v1.VirtualMachineInstance
	err        error
}

func (c *cached) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch list := list.(type) {
	case *v1.VirtualMachineInstanceMigrationList:
		list.Items = c.migrations
	case *v1.VirtualMachineInstanceList:
		list.Items = c.instances
	}
	return c.err
}

func elected() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func migration(name string, phase v1.VirtualMachineInstanceMigrationPhase) v1.VirtualMachineInstanceMigration {
	return *builder.MakeMigration(name, "vm").Namespace("ns").UID(name).Created(noon).Phase(phase, noon).Obj()
}

func instance(name string, phase v1.VirtualMachineInstancePhase, change func(*v1.VirtualMachineInstance)) v1.VirtualMachineInstance {
	return *builder.MakeVMI(name).Namespace("ns").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.Phase, vmi.Status.NodeName = phase, "node-1"
		change(vmi)
	}).Obj()
}

func old(vmi *v1.VirtualMachineInstance) {
	vmi.Labels = map[string]string{v1.OutdatedLauncherImageLabel: ""}
}

func TestCollector(t *testing.T) {
	end := metav1.NewTime(noon.Add(time.Minute))
	moved := func(failed bool) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			start := metav1.NewTime(noon)
			vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
				MigrationUID: "done", StartTimestamp: &start, EndTimestamp: &end, Completed: true, Failed: failed,
			}
		}
	}
	c := &Collector{Elected: elected(), Reader: &cached{
		migrations: []v1.VirtualMachineInstanceMigration{
			migration("a", v1.MigrationPhaseUnset), migration("b", v1.MigrationPending), migration("c", v1.MigrationPending),
			migration("d", v1.MigrationScheduling), migration("e", v1.MigrationScheduled), migration("f", v1.MigrationTargetReady),
			migration("g", v1.MigrationRunning), migration("done", v1.MigrationSucceeded), migration("bad", v1.MigrationFailed),
		},
		instances: []v1.VirtualMachineInstance{
			instance("moved", v1.Running, moved(false)), instance("stayed", v1.Running, moved(true)),
			instance("old", v1.Running, old), instance("old and gone", v1.Succeeded, old),
		},
	}}
	want := `
kubevirt_vmi_migration_end_time_seconds{migration_name="done",name="moved",namespace="ns",node="node-1",status="succeeded"} 1.79534886e+09
kubevirt_vmi_migration_end_time_seconds{migration_name="done",name="stayed",namespace="ns",node="node-1",status="failed"} 1.79534886e+09
kubevirt_vmi_migration_failed{namespace="ns",vmi="vm",vmim="bad"} 1
kubevirt_vmi_migration_start_time_seconds{migration_name="done",name="moved",namespace="ns",node="node-1"} 1.7953488e+09
kubevirt_vmi_migration_start_time_seconds{migration_name="done",name="stayed",namespace="ns",node="node-1"} 1.7953488e+09
kubevirt_vmi_migration_succeeded{namespace="ns",vmi="vm",vmim="done"} 1
kubevirt_vmi_migrations_in_pending_phase 2
kubevirt_vmi_migrations_in_running_phase 3
kubevirt_vmi_migrations_in_scheduling_phase 1
kubevirt_vmi_migrations_in_unset_phase 1
kubevirt_vmi_number_of_outdated 1
`
	got, err := testutil.CollectAndFormat(c, expfmt.TypeTextPlain, names...)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, line := range strings.Split(string(got), "\n") {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	if strings.TrimSpace(strings.Join(lines, "\n")) != strings.TrimSpace(want) {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
}

func TestOnlyLeaderHasMetrics(t *testing.T) {
	if n := testutil.CollectAndCount(&Collector{Elected: make(chan struct{}), Reader: &cached{}}); n != 0 {
		t.Errorf("%d metrics of a process that does not lead", n)
	}
	if _, err := testutil.CollectAndFormat(&Collector{Elected: elected(), Reader: &cached{err: errors.New("no cache")}}, expfmt.TypeTextPlain); err == nil {
		t.Error("no error from a cache that cannot be read")
	}
}

func TestTransitions(t *testing.T) {
	transitions := NewTransitions(nil)
	before := builder.MakeMigration("m", "vm").Created(noon).Phase(v1.MigrationPending, noon)
	old := before.Obj()
	now := before.Phase(v1.MigrationScheduling, noon.Add(3*time.Second)).Phase(v1.MigrationScheduled, noon.Add(-time.Second)).Obj()
	transitions.observe(old, now)
	transitions.observe(now, now)
	want := `
# HELP kubevirt_vmi_migration_phase_transition_time_from_creation_seconds How long after its creation a migration came to a phase.
# TYPE kubevirt_vmi_migration_phase_transition_time_from_creation_seconds histogram
`
	for _, phase := range []struct {
		name, sum string
		from      float64
	}{{"Scheduled", "0", 0}, {"Scheduling", "3", 3}} {
		for _, bucket := range append(buckets, 0) {
			le, count := strconv.FormatFloat(bucket, 'g', -1, 64), "1"
			if bucket == 0 {
				le = "+Inf"
			} else if bucket < phase.from {
				count = "0"
			}
			want += `kubevirt_vmi_migration_phase_transition_time_from_creation_seconds_bucket{phase="` + phase.name + `",le="` + le + `"} ` + count + "\n"
		}
		want += `kubevirt_vmi_migration_phase_transition_time_from_creation_seconds_sum{phase="` + phase.name + `"} ` + phase.sum + "\n" +
			`kubevirt_vmi_migration_phase_transition_time_from_creation_seconds_count{phase="` + phase.name + `"} 1` + "\n"
	}
	if err := testutil.CollectAndCompare(transitions.Collector(), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
