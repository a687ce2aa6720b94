// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package tracing

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/otlp"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/otlpcollector"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func at(seconds int) metav1.Time {
	return metav1.NewTime(noon.Add(time.Duration(seconds) * time.Second))
}

// objects is a cache of which only Get works.
type objects struct {
	cache.Cache
	client client.Client
}

func (o objects) Get(ctx context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	return o.client.Get(ctx, key, object)
}

// world is a Watcher that exports to a collector.
type world struct {
	*Watcher
	t         *testing.T
	clock     *clocktesting.FakePassiveClock
	collector *otlpcollector.Collector
}

func newWorld(t *testing.T, cached ...client.Object) *world {
	t.Helper()
	collector, err := otlpcollector.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := collector.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.Endpoint())
	exporter, err := otlp.New(t.Context(), "virt-controller", "v1", logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	scheme := fake.NewClientBuilder().Build().Scheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakePassiveClock(noon)
	w := &world{t: t, clock: clock, collector: collector, Watcher: &Watcher{
		Cache: objects{client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(cached...).Build()}, Exporter: exporter,
		Clock: clock,
	}}
	w.prepare()
	return w
}

// expect stops the export, and expects these spans: name, start and end in seconds after noon, and "!" if it failed.
func (w *world) expect(want ...string) map[string]otlpcollector.Span {
	w.t.Helper()
	if err := w.Exporter.Close(); err != nil {
		w.t.Fatal(err)
	}
	spans, byName := w.collector.Spans(), map[string]otlpcollector.Span{}
	for i := range spans {
		s := &spans[i]
		byName[s.Name] = *s
		s.Name = fmt.Sprintf("%s %g-%g", s.Name, s.Start.Sub(noon).Seconds(), s.End.Sub(noon).Seconds())
		if s.Failed {
			s.Name += "!"
		}
	}
	got, err := otlpcollector.Tree(spans)
	if err != nil {
		w.t.Error(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Error(diff)
	}
	return byName
}

// vmi makes a VMI that was created at noon, with the phases that it was in, and their seconds.
func vmi(phases ...any) *builder.VMI {
	return builder.MakeVMI("vm").UID("vmi-uid").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.CreationTimestamp = at(0)
		for i := 0; i < len(phases); i += 2 {
			phase, _ := phases[i].(v1.VirtualMachineInstancePhase)
			after, _ := phases[i+1].(int)
			vmi.Status.Phase = phase
			vmi.Status.PhaseTransitionTimestamps = append(vmi.Status.PhaseTransitionTimestamps,
				v1.VirtualMachineInstancePhaseTransitionTimestamp{Phase: phase, PhaseTransitionTimestamp: at(after)})
		}
	})
}

func podCondition(kind corev1.PodConditionType, status corev1.ConditionStatus, after int) corev1.PodCondition {
	return corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: at(after)}
}

// pod is a launcher Pod that is created after two seconds and runs after eight.
func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: builder.Namespace, Name: name, CreationTimestamp: at(2)},
		Spec:       corev1.PodSpec{NodeName: "node-1"},
		Status: corev1.PodStatus{
			Conditions: []corev1.PodCondition{
				podCondition(corev1.PodReady, corev1.ConditionFalse, 9),
				podCondition(corev1.PodInitialized, corev1.ConditionTrue, 6),
				podCondition(corev1.PodReadyToStartContainers, corev1.ConditionTrue, 5),
				podCondition(corev1.PodScheduled, corev1.ConditionTrue, 3),
			},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name:  launcherpod.ComputeContainer,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(8)}},
			}},
		},
	}
}

func TestStart(t *testing.T) {
	scheduled := []any{v1.Pending, 1, v1.Scheduling, 2, v1.Scheduled, 9}
	before, after := vmi(scheduled...).Obj(), vmi(append(scheduled, v1.Running, 12)...).Obj()
	w := newWorld(t, pod(podspec.PodName(after)))
	w.observeVMI(t.Context(), vmi(v1.Pending, 1).Obj(), before)
	w.observeVMI(t.Context(), before, after)
	w.observeVMI(t.Context(), after, after)
	w.observeVMI(t.Context(), after, vmi(append(scheduled, v1.Running, 12, v1.Failed, 100)...).Obj())
	spans := w.expect(
		"VirtualMachineInstance start 0-12",
		"  Pending 1-2",
		"  Scheduling 2-9",
		"    PodScheduled 2-3",
		"    PodReadyToStartContainers 3-5",
		"    Initialized 5-6",
		"    ContainerStarted 6-8",
		"  Scheduled 9-12",
	)
	want := map[string]string{
		"k8s.namespace.name": builder.Namespace, "k8s.pod.name": podspec.PodName(after), "k8s.node.name": "node-1",
		"kubevirt.vmi.name": "vm", "kubevirt.vmi.uid": "vmi-uid",
	}
	if diff := cmp.Diff(want, spans[startSpan].Attributes); diff != "" {
		t.Error(diff)
	}
}

func TestStartFails(t *testing.T) {
	before := vmi(v1.Pending, 0, v1.Scheduling, 2)
	after := vmi(v1.Pending, 0, v1.Scheduling, 2, v1.Failed, 30).
		Condition(v1.VirtualMachineInstanceReady, corev1.ConditionFalse, "GuestNotRunning",
			"no\x1b space"+strings.Repeat(".", 1000)).
		With(func(vmi *v1.VirtualMachineInstance) { vmi.Status.Reason = "Crash" })
	w := newWorld(t)
	w.observeVMI(t.Context(), before.Obj(), after.Obj())
	spans := w.expect("VirtualMachineInstance start 0-30!", "  Pending 0-2", "  Scheduling 2-30!")
	reason := spans[startSpan].Error
	if want := "Crash: no space..."; !strings.HasPrefix(reason, want) || len(reason) != 256 {
		t.Errorf("reason %q, want %s", reason, want)
	}
}

// The stamps come from the clocks of the API server, virt-controller and the node.
func TestStartWithUnequalClocks(t *testing.T) {
	w := newWorld(t)
	w.observeVMI(t.Context(), vmi(v1.Pending, -3).Obj(),
		vmi(v1.Pending, -3, v1.Scheduling, 5, v1.Scheduled, 4, v1.Running, 2).Obj())
	w.expect("VirtualMachineInstance start 0-5", "  Pending 0-5", "  Scheduling 5-5", "  Scheduled 5-5")
}

// What ended before this process became the leader was exported by another one, if at all.
func TestNothingTwice(t *testing.T) {
	w := newWorld(t)
	w.clock.SetTime(noon.Add(10500 * time.Millisecond))
	w.prepare()
	w.observeVMI(t.Context(), vmi(v1.Pending, 0).Obj(), vmi(v1.Pending, 0, v1.Running, 10).Obj())
	w.observeMigration(t.Context(), builder.MakeMigration("m", "vm").Obj(),
		builder.MakeMigration("m", "vm").Phase(v1.MigrationSucceeded, at(10).Time).Obj())
	w.observeVMI(t.Context(), vmi(v1.Pending, 0).Obj(), vmi(v1.Pending, 0, v1.Running, 11).Obj())
	w.expect("VirtualMachineInstance start 0-11", "  Pending 0-11")
}

func TestRequestedStart(t *testing.T) {
	vm := builder.MakeVM("vm").UID("vm-uid").Strategy(v1.RunStrategyHalted).With(
		func(vm *v1.VirtualMachine) { vm.CreationTimestamp = at(-9) }).Obj()
	with := func(change func(*v1.VirtualMachine)) *v1.VirtualMachine {
		changed := vm.DeepCopy()
		change(changed)
		return changed
	}
	always := func(vm *v1.VirtualMachine) { vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways) }
	requested := with(func(vm *v1.VirtualMachine) {
		vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StopRequest},
			{Action: v1.StartRequest}}
	})
	stopped := with(func(vm *v1.VirtualMachine) {
		vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StopRequest}}
	})
	nothing := &v1.VirtualMachine{}
	for name, tc := range map[string]struct {
		observed []*v1.VirtualMachine
		want     int
	}{
		"created with run strategy Always":        {[]*v1.VirtualMachine{nothing, with(always), with(always)}, -9},
		"run strategy changed":                    {[]*v1.VirtualMachine{nothing, vm, with(always)}, -5},
		"request, then its end":                   {[]*v1.VirtualMachine{nothing, vm, requested, vm}, -5},
		"halted again":                            {[]*v1.VirtualMachine{nothing, with(always), vm}, 0},
		"request, then a stop in its place":       {[]*v1.VirtualMachine{nothing, vm, requested, stopped}, 0},
		"run strategy changed while a VMI exists": {[]*v1.VirtualMachine{vm, with(func(vm *v1.VirtualMachine) { always(vm); vm.Status.Created = true })}, 0},
		"unknown": {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.clock.SetTime(at(-5).Time)
			for i := 1; i < len(tc.observed); i++ {
				w.observeVM(tc.observed[i-1], tc.observed[i])
			}
			instance := vmi(v1.Pending, 0).OwnedBy(vm)
			w.observeVMI(t.Context(), instance.Obj(), instance.Phase(v1.Running).With(func(vmi *v1.VirtualMachineInstance) {
				vmi.Status.PhaseTransitionTimestamps[1].PhaseTransitionTimestamp = at(4)
			}).Obj())
			want := []string{fmt.Sprintf("VirtualMachineInstance start %d-4", tc.want)}
			if tc.want != 0 {
				want = append(want, fmt.Sprintf("  Requested %d-0", tc.want))
			}
			spans := w.expect(append(want, "  Pending 0-4")...)
			if got := spans[startSpan].Attributes["kubevirt.vm.name"]; got != "vm" {
				t.Errorf("VM %q", got)
			}
			if len(w.requested) != 0 {
				t.Error("the request was not forgotten")
			}
		})
	}
}

// A VMI that is deleted before its guest runs takes the request with it. A later request is for the VMI after it.
func TestRequestIsForOneVMI(t *testing.T) {
	halted := builder.MakeVM("vm").UID("vm-uid").Strategy(v1.RunStrategyHalted).With(
		func(vm *v1.VirtualMachine) { vm.Status.Created = true }).Obj()
	wanted, restart := halted.DeepCopy(), halted.DeepCopy()
	wanted.Spec.RunStrategy, wanted.Status.Created = ptr.To(v1.RunStrategyAlways), false
	restart.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{{Action: v1.StopRequest},
		{Action: v1.StartRequest}}
	first := vmi(v1.Pending,
		-90).OwnedBy(halted).With(func(vmi *v1.VirtualMachineInstance) { vmi.CreationTimestamp = at(-99) }).Obj()
	failed := first.DeepCopy()
	failed.Status.PhaseTransitionTimestamps[0].Phase = v1.Failed
	for name, tc := range map[string]struct {
		ends func(*world)
		want []string
	}{
		"deleted": {
			func(w *world) { w.instances(w.t.Context()).OnDelete(first) },
			[]string{"VirtualMachineInstance start 0-4", "  Pending 0-4"},
		},
		"restarted, then deleted": {
			func(w *world) {
				w.clock.SetTime(at(-5).Time)
				w.observeVM(halted, restart)
				w.instances(w.t.Context()).OnDelete(toolscache.DeletedFinalStateUnknown{Obj: first})
			},
			[]string{"VirtualMachineInstance start -5-4", "  Requested -5-0", "  Pending 0-4"},
		},
		"restarted, then failed": {
			func(w *world) {
				w.clock.SetTime(at(-5).Time)
				w.observeVM(halted, restart)
				w.instances(w.t.Context()).OnUpdate(first, failed)
			},
			[]string{"VirtualMachineInstance start -5-4", "  Requested -5-0", "  Pending 0-4"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.clock.SetTime(at(-100).Time)
			w.observeVM(halted, wanted)
			tc.ends(w)
			second := vmi(v1.Pending, 0).OwnedBy(halted)
			w.observeVMI(t.Context(), second.Obj(), second.Phase(v1.Running).With(func(vmi *v1.VirtualMachineInstance) {
				vmi.Status.PhaseTransitionTimestamps[1].PhaseTransitionTimestamp = at(4)
			}).Obj())
			w.expect(tc.want...)
		})
	}
}

// migrated makes a migration that was created at noon.
func migrated(phases ...any) *builder.Migration {
	m := builder.MakeMigration("m", "vm").UID("m-uid").Created(noon)
	for i := 0; i < len(phases); i += 2 {
		phase, _ := phases[i].(v1.VirtualMachineInstanceMigrationPhase)
		after, _ := phases[i+1].(int)
		m.Phase(phase, at(after).Time)
	}
	return m
}

func TestMigration(t *testing.T) {
	phases := []any{
		v1.MigrationPending, 1, v1.MigrationScheduling, 2, v1.MigrationScheduled, 9, v1.MigrationPreparingTarget, 9,
		v1.MigrationTargetReady, 10, v1.MigrationRunning, 12,
	}
	guest := vmi(v1.Running, 0).Obj()
	w := newWorld(t, guest, pod(podspec.TargetPodName(guest, "m-uid")))
	start, end := at(11), at(20)
	after := migrated(append(phases, v1.MigrationSucceeded, 21)...).Obj()
	after.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
		StartTimestamp: &start, EndTimestamp: &end, SourceNode: "node-0", TargetNode: "node-1", TargetPod: "target",
		Mode: v1.MigrationPreCopy, Completed: true,
	}
	w.observeMigration(t.Context(), migrated(phases...).Obj(), after)
	w.observeMigration(t.Context(), after, after)
	spans := w.expect(
		"VirtualMachineInstance migration 0-21",
		"  Pending 1-2",
		"  Scheduling 2-9",
		"    PodScheduled 2-3",
		"    PodReadyToStartContainers 3-5",
		"    Initialized 5-6",
		"    ContainerStarted 6-8",
		"  Scheduled 9-9",
		"  PreparingTarget 9-10",
		"  TargetReady 10-12",
		"  Transfer 11-20",
		"  Running 12-21",
	)
	root := spans[migrationSpan]
	want := map[string]string{
		"k8s.namespace.name": builder.Namespace, "kubevirt.vmi.name": "vm", "kubevirt.vmi.uid": "vmi-uid",
		"kubevirt.migration.name": "m", "kubevirt.migration.uid": "m-uid", "kubevirt.migration.mode": "PreCopy",
		"kubevirt.migration.source.node": "node-0", "kubevirt.migration.target.node": "node-1", "kubevirt.migration.target.pod": "target",
	}
	if diff := cmp.Diff(want, root.Attributes); diff != "" {
		t.Error(diff)
	}
	if len(root.Links) != 1 {
		t.Errorf("links %v, want that to the guest's start", root.Links)
	}
}

func TestMigrationFails(t *testing.T) {
	phases := []any{v1.MigrationPending, 0, v1.MigrationScheduling, 2, v1.MigrationRunning, 4}
	start, end := at(4), at(6)
	after := migrated(append(phases, v1.MigrationFailed, 7)...).Obj()
	after.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
		StartTimestamp: &start, EndTimestamp: &end, Failed: true, Completed: true, FailureReason: "the connection broke",
	}
	w := newWorld(t)
	w.observeMigration(t.Context(), migrated(phases...).Obj(), after)
	spans := w.expect("VirtualMachineInstance migration 0-7!", "  Pending 0-2", "  Scheduling 2-4", "  Transfer 4-6!",
		"  Running 4-7!")
	if got := spans[migrationSpan].Error; got != "the connection broke" {
		t.Errorf("reason %q", got)
	}
}

func TestMigrationFailsBeforeItStarts(t *testing.T) {
	w := newWorld(t)
	w.observeMigration(t.Context(), migrated(v1.MigrationPending, 0).Obj(),
		migrated(v1.MigrationPending, 0, v1.MigrationFailed, 7).Obj())
	w.expect("VirtualMachineInstance migration 0-7!", "  Pending 0-7!")
}
