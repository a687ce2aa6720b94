// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// buckets are KubeVirt's. Source: kubevirt/kubevirt pkg/monitoring/metrics/virt-controller, PhaseTransitionTimeBuckets.
var buckets = []float64{0.5, 1, 2, 5, 10, 20, 30, 40, 50, 60, 90, 120, 180, 300, 600, 1200, 1800, 3600}

// Transitions measures how long after its creation a migration reaches each phase. It runs on the leader.
type Transitions struct {
	cache cache.Cache
	times *prometheus.HistogramVec
}

// NewTransitions makes a Transitions that watches the migrations of a cache.
func NewTransitions(c cache.Cache) *Transitions {
	return &Transitions{cache: c, times: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "kubevirt_vmi_migration_phase_transition_time_from_creation_seconds",
		Help:    "How long after its creation a migration came to a phase.",
		Buckets: buckets,
	}, []string{"phase"})}
}

// Collector returns the collector to register.
func (t *Transitions) Collector() prometheus.Collector { return t.times }

// Start watches until the context ends.
func (t *Transitions) Start(ctx context.Context) error {
	informer, err := t.cache.GetInformer(ctx, &v1.VirtualMachineInstanceMigration{})
	if err != nil {
		return fmt.Errorf("watch migrations for their metrics: %w", err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		old, ok := before.(*v1.VirtualMachineInstanceMigration)
		now, isMigration := after.(*v1.VirtualMachineInstanceMigration)
		if ok && isMigration {
			t.observe(old, now)
		}
	}})
	if err != nil {
		return fmt.Errorf("watch migrations for their metrics: %w", err)
	}
	<-ctx.Done()
	return informer.RemoveEventHandler(registration)
}

// observe counts the phases that a migration has reached with one write, which may be several.
func (t *Transitions) observe(before, after *v1.VirtualMachineInstanceMigration) {
	for _, stamp := range after.Status.PhaseTransitionTimestamps {
		known := slices.ContainsFunc(before.Status.PhaseTransitionTimestamps, func(o v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp) bool {
			return o.Phase == stamp.Phase
		})
		if !known {
			seconds := stamp.PhaseTransitionTimestamp.Sub(after.CreationTimestamp.Time).Seconds()
			t.times.WithLabelValues(string(stamp.Phase)).Observe(max(0, seconds))
		}
	}
}
