// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// buckets are KubeVirt's. Source: kubevirt/kubevirt pkg/monitoring/metrics/virt-controller, PhaseTransitionTimeBuckets.
var buckets = []float64{0.5, 1, 2, 5, 10, 20, 30, 40, 50, 60, 90, 120, 180, 300, 600, 1200, 1800, 3600}

// Transitions measures how long VMIs and migrations take to reach their phases, and counts the VMs that are created. It
// runs on the leader.
type Transitions struct {
	cache cache.Cache
	// migrations are the times from the creation of a migration to a phase.
	migrations *prometheus.HistogramVec
	// steps are the times from one phase of a VMI to the next, fromCreation and fromDeletion those from its creation and
	// deletion.
	steps, fromCreation, fromDeletion *prometheus.HistogramVec
	created                           *prometheus.CounterVec
}

// NewTransitions makes a Transitions that watches the objects of a cache.
func NewTransitions(c cache.Cache) *Transitions {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kubevirt_" + name, Help: help, Buckets: buckets},
			labels)
	}
	return &Transitions{
		cache: c,
		migrations: histogram("vmi_migration_phase_transition_time_from_creation_seconds",
			"How long after its creation a migration came to a phase.", "phase"),
		steps: histogram("vmi_phase_transition_time_seconds",
			"How long a VMI was in a phase before it came to the next.", "phase", "last_phase"),
		fromCreation: histogram("vmi_phase_transition_time_from_creation_seconds",
			"How long after its creation a VMI came to a phase.", "phase"),
		fromDeletion: histogram("vmi_phase_transition_time_from_deletion_seconds",
			"How long after its deletion a VMI came to a final phase.", "phase"),
		created: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubevirt_vm_created_by_pod_total", Help: "VMs that were created while this process was the leader.",
		}, []string{"namespace"}),
	}
}

// Collectors returns the collectors to register.
func (t *Transitions) Collectors() []prometheus.Collector {
	return []prometheus.Collector{t.migrations, t.steps, t.fromCreation, t.fromDeletion, t.created}
}

// Start watches until the context ends.
func (t *Transitions) Start(ctx context.Context) error {
	for object, handler := range map[client.Object]toolscache.ResourceEventHandler{
		&v1.VirtualMachineInstanceMigration{}: onUpdate(t.observe),
		&v1.VirtualMachineInstance{}:          onUpdate(t.observeVMI),
		&v1.VirtualMachine{}: toolscache.ResourceEventHandlerDetailedFuncs{AddFunc: func(object any, initial bool) {
			if vm, ok := object.(*v1.VirtualMachine); ok && !initial {
				t.created.WithLabelValues(vm.Namespace).Inc()
			}
		}, DeleteFunc: func(object any) {
			if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			if vm, ok := object.(*v1.VirtualMachine); ok {
				t.forget(ctx, vm.Namespace)
			}
		}},
	} {
		informer, err := t.cache.GetInformer(ctx, object)
		if err != nil {
			return fmt.Errorf("watch %T for its metrics: %w", object, err)
		}
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return fmt.Errorf("watch %T for its metrics: %w", object, err)
		}
		defer func() { _ = informer.RemoveEventHandler(registration) }()
	}
	<-ctx.Done()
	return nil
}

// forget removes the counter of a namespace without VMs. Otherwise the counters of deleted namespaces would accumulate.
func (t *Transitions) forget(ctx context.Context, namespace string) {
	remaining := &v1.VirtualMachineList{}
	if err := t.cache.List(ctx, remaining, client.InNamespace(namespace), client.Limit(1),
		client.UnsafeDisableDeepCopy); err == nil && len(remaining.Items) == 0 {
		t.created.DeleteLabelValues(namespace)
	}
}

// onUpdate returns a handler that calls a function with both versions of an object.
func onUpdate[T any](observe func(before, after T)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		old, oldOK := before.(T)
		updated, updatedOK := after.(T)
		if oldOK && updatedOK {
			observe(old, updated)
		}
	}}
}

// observe counts the phases that a migration has reached with one write. There may be several.
func (t *Transitions) observe(before, after *v1.VirtualMachineInstanceMigration) {
	for _, stamp := range after.Status.PhaseTransitionTimestamps {
		known := slices.ContainsFunc(before.Status.PhaseTransitionTimestamps,
			func(o v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp) bool {
				return o.Phase == stamp.Phase
			})
		if !known {
			t.migrations.WithLabelValues(string(stamp.Phase)).Observe(
				seconds(after.CreationTimestamp, stamp.PhaseTransitionTimestamp))
		}
	}
}

// observeVMI counts the phases that a VMI has reached with one write. The phase before the first one is unset and
// starts with the creation.
func (t *Transitions) observeVMI(before, after *v1.VirtualMachineInstance) {
	last, since := v1.VmPhaseUnset, after.CreationTimestamp
	for _, stamp := range after.Status.PhaseTransitionTimestamps {
		known := slices.ContainsFunc(before.Status.PhaseTransitionTimestamps,
			func(o v1.VirtualMachineInstancePhaseTransitionTimestamp) bool {
				return o.Phase == stamp.Phase
			})
		phase, at := stamp.Phase, stamp.PhaseTransitionTimestamp
		if !known {
			t.steps.WithLabelValues(string(phase), string(last)).Observe(seconds(since, at))
			t.fromCreation.WithLabelValues(string(phase)).Observe(seconds(after.CreationTimestamp, at))
			if final := phase == v1.Succeeded || phase == v1.Failed; final && after.DeletionTimestamp != nil {
				t.fromDeletion.WithLabelValues(string(phase)).Observe(seconds(*after.DeletionTimestamp, at))
			}
		}
		last, since = phase, at
	}
}

// seconds returns the time between two stamps. They come from different clocks, so the second may be earlier.
func seconds(from, to metav1.Time) float64 { return max(0, to.Sub(from.Time).Seconds()) }
