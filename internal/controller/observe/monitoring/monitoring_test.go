// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/test/builder"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// migrationNames are the metrics of migrations.
var migrationNames = []string{
	"kubevirt_vmi_migrations_in_unset_phase", "kubevirt_vmi_migrations_in_pending_phase",
	"kubevirt_vmi_migrations_in_scheduling_phase",
	"kubevirt_vmi_migrations_in_running_phase", "kubevirt_vmi_migration_succeeded", "kubevirt_vmi_migration_failed",
	"kubevirt_vmi_migration_start_time_seconds", "kubevirt_vmi_migration_end_time_seconds",
	"kubevirt_vmi_number_of_outdated",
}

// cached is a cache that returns these objects, or this error.
type cached struct {
	client.Reader
	migrations []v1.VirtualMachineInstanceMigration
	vmis       []v1.VirtualMachineInstance
	vms        []v1.VirtualMachine
	snapshots  []snapshotv1beta1.VirtualMachineSnapshot
	pods       []corev1.Pod
	claims     []corev1.PersistentVolumeClaim
	types      []v1beta1.VirtualMachineClusterInstancetype
	own        []v1beta1.VirtualMachineInstancetype
	kubevirts  []v1.KubeVirt
	secrets    []corev1.Secret
	nodes      []metav1.PartialObjectMetadata
	err        error
}

func (c *cached) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	namespace := (&client.ListOptions{}).ApplyOptions(options).Namespace
	switch list := list.(type) {
	case *v1.VirtualMachineInstanceMigrationList:
		list.Items = c.migrations
	case *v1.VirtualMachineInstanceList:
		list.Items = c.vmis
	case *snapshotv1beta1.VirtualMachineSnapshotList:
		list.Items = c.snapshots
	case *v1.VirtualMachineList:
		list.Items = c.vms
	case *corev1.PodList:
		list.Items = c.pods
	case *corev1.PersistentVolumeClaimList:
		list.Items = c.claims
	case *v1beta1.VirtualMachineClusterInstancetypeList:
		list.Items = c.types
	case *v1beta1.VirtualMachineInstancetypeList:
		list.Items = c.own
	case *v1.KubeVirtList:
		list.Items = slices.DeleteFunc(slices.Clone(c.kubevirts),
			func(kv v1.KubeVirt) bool { return kv.Namespace != namespace })
	case *corev1.SecretList:
		list.Items = c.secrets
	case *metav1.PartialObjectMetadataList:
		list.Items = c.nodes
	}
	return c.err
}

// collector returns the collector of a leader.
func collector(reader *cached) *Collector {
	leading := make(chan struct{})
	close(leading)
	return &Collector{Reader: reader, Elected: leading, Config: clusterconfig.Default,
		Labels: Labels(metrics.NewLabelFilter())}
}

// samples returns the samples with these names, or all.
func samples(t *testing.T, c prometheus.Collector, names ...string) string {
	t.Helper()
	got, err := testutil.CollectAndFormat(c, expfmt.TypeTextPlain, names...)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.SplitSeq(string(got), "\n") {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

func migration(name string, phase v1.VirtualMachineInstanceMigrationPhase) v1.VirtualMachineInstanceMigration {
	return *builder.MakeMigration(name, "vm").Namespace("ns").UID(name).Created(noon).Phase(phase, noon).Obj()
}

func instance(
	name string, phase v1.VirtualMachineInstancePhase, change func(*v1.VirtualMachineInstance),
) v1.VirtualMachineInstance {
	return *builder.MakeVMI(name).Namespace("ns").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.Phase, vmi.Status.NodeName = phase, "node-1"
		change(vmi)
	}).Obj()
}

func old(vmi *v1.VirtualMachineInstance) {
	vmi.Labels = map[string]string{v1.OutdatedLauncherImageLabel: ""}
}

func TestMigrations(t *testing.T) {
	end := metav1.NewTime(noon.Add(time.Minute))
	moved := func(failed bool) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			start := metav1.NewTime(noon)
			vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
				MigrationUID: "done", StartTimestamp: &start, EndTimestamp: &end, Completed: true, Failed: failed,
			}
		}
	}
	c := collector(&cached{
		migrations: []v1.VirtualMachineInstanceMigration{
			migration("a", v1.MigrationPhaseUnset), migration("b", v1.MigrationPending), migration("c", v1.MigrationPending),
			migration("d", v1.MigrationScheduling), migration("e", v1.MigrationScheduled),
			migration("f", v1.MigrationTargetReady),
			migration("g", v1.MigrationRunning), migration("done", v1.MigrationSucceeded), migration("bad", v1.MigrationFailed),
		},
		vmis: []v1.VirtualMachineInstance{
			instance("moved", v1.Running, moved(false)), instance("stayed", v1.Running, moved(true)),
			instance("old", v1.Running, old), instance("old and gone", v1.Succeeded, old),
		},
	})
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
	if diff := cmp.Diff(strings.TrimSpace(want), samples(t, c, migrationNames...)); diff != "" {
		t.Error(diff)
	}
}

func TestOnlyLeaderHasMetrics(t *testing.T) {
	follower := collector(&cached{vms: []v1.VirtualMachine{*builder.MakeVM("vm").Namespace("ns").Obj()}})
	follower.Elected = make(chan struct{})
	if n := testutil.CollectAndCount(follower); n != 0 {
		t.Errorf("%d metrics of a process that does not lead", n)
	}
	if _, err := testutil.CollectAndFormat(collector(&cached{err: errors.New("no cache")}),
		expfmt.TypeTextPlain); err == nil {
		t.Error("no error from a cache that cannot be read")
	}
}

func TestTransitions(t *testing.T) {
	transitions := NewTransitions(nil)
	before := builder.MakeMigration("m", "vm").Created(noon).Phase(v1.MigrationPending, noon)
	old := before.Obj()
	now := before.Phase(v1.MigrationScheduling, noon.Add(3*time.Second)).Phase(v1.MigrationScheduled,
		noon.Add(-time.Second)).Obj()
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
	if err := testutil.CollectAndCompare(transitions.migrations, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestTransitionsOfVMIs(t *testing.T) {
	stamps := func(phases ...any) (out []v1.VirtualMachineInstancePhaseTransitionTimestamp) {
		for i := 0; i < len(phases); i += 2 {
			phase, _ := phases[i].(v1.VirtualMachineInstancePhase)
			after, _ := phases[i+1].(int)
			out = append(out, v1.VirtualMachineInstancePhaseTransitionTimestamp{
				Phase: phase, PhaseTransitionTimestamp: metav1.NewTime(noon.Add(time.Duration(after) * time.Second)),
			})
		}
		return out
	}
	vmi := func(deleted int, phases ...any) *v1.VirtualMachineInstance {
		return builder.MakeVMI("vm").With(func(vmi *v1.VirtualMachineInstance) {
			vmi.CreationTimestamp = metav1.NewTime(noon)
			if deleted > 0 {
				at := metav1.NewTime(noon.Add(time.Duration(deleted) * time.Second))
				vmi.DeletionTimestamp = &at
			}
			vmi.Status.PhaseTransitionTimestamps = stamps(phases...)
		}).Obj()
	}
	transitions := NewTransitions(nil)
	before := vmi(0, v1.Pending, 1)
	after := vmi(0, v1.Pending, 1, v1.Scheduling, 2, v1.Scheduled, 7)
	transitions.observeVMI(before, after)
	transitions.observeVMI(after, after)
	transitions.observeVMI(vmi(100, v1.Running, 9), vmi(100, v1.Running, 9, v1.Succeeded, 130))
	transitions.observeVMI(vmi(0, v1.Running, 9), vmi(0, v1.Running, 9, v1.Failed, 130))
	for name, tc := range map[string]struct {
		histogram *prometheus.HistogramVec
		want      map[string]float64
	}{
		"steps":         {transitions.steps, map[string]float64{"Pending>Scheduling": 1, "Scheduling>Scheduled": 5, "Running>Succeeded": 121, "Running>Failed": 121}},
		"from creation": {transitions.fromCreation, map[string]float64{">Scheduling": 2, ">Scheduled": 7, ">Succeeded": 130, ">Failed": 130}},
		"from deletion": {transitions.fromDeletion, map[string]float64{">Succeeded": 30}},
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			registry.MustRegister(tc.histogram)
			families, err := registry.Gather()
			if err != nil || len(families) != 1 {
				t.Fatal(families, err)
			}
			got := map[string]float64{}
			for _, metric := range families[0].Metric {
				labels := map[string]string{}
				for _, l := range metric.Label {
					labels[l.GetName()] = l.GetValue()
				}
				if metric.Histogram.GetSampleCount() != 1 {
					t.Errorf("%v was observed %d times", labels, metric.Histogram.GetSampleCount())
				}
				got[labels["last_phase"]+">"+labels["phase"]] = metric.Histogram.GetSampleSum()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// listing is a cache of which only List works.
type listing struct {
	cache.Cache
	from *cached
}

func (l listing) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return l.from.List(ctx, list, options...)
}

// Namespaces come and go; the counter of one without VMs is removed.
func TestCountersOfNamespacesEnd(t *testing.T) {
	objects := &cached{vms: make([]v1.VirtualMachine, 1)}
	transitions := NewTransitions(listing{from: objects})
	transitions.created.WithLabelValues("ns").Inc()
	objects.err = errors.New("not synced")
	transitions.forget(t.Context(), "ns")
	objects.err = nil
	transitions.forget(t.Context(), "ns")
	if n := testutil.CollectAndCount(transitions.created); n != 1 {
		t.Errorf("%d counters of a namespace with a VM", n)
	}
	objects.vms = nil
	transitions.forget(t.Context(), "ns")
	if n := testutil.CollectAndCount(transitions.created); n != 0 {
		t.Errorf("%d counters of a namespace without VMs", n)
	}
}
