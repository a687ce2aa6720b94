// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

var syncsDesc = Describe("vmi_sync_total", "How often a VMI was reconciled.", "namespace", "name")

// Syncs counts the reconciliations of VMIs. A VMI that does not exist any more has no series.
type Syncs struct {
	// Exists reports whether a VMI still exists, according to a cache. It is called after each reconciliation: there is one after the
	// deletion.
	Exists func(context.Context, types.NamespacedName) bool

	mu    sync.Mutex
	count map[types.NamespacedName]uint64
}

// Wrap returns a reconciler that counts the calls of another one.
func (s *Syncs) Wrap(r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		result, err := r.Reconcile(ctx, request)
		s.add(request.NamespacedName, s.Exists(ctx, request.NamespacedName))
		return result, err
	})
}

func (s *Syncs) add(vmi types.NamespacedName, exists bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !exists {
		delete(s.count, vmi)
		return
	}
	if s.count == nil {
		s.count = map[types.NamespacedName]uint64{}
	}
	s.count[vmi]++
}

// Describe implements prometheus.Collector.
func (*Syncs) Describe(to chan<- *prometheus.Desc) { to <- syncsDesc }

// Collect implements prometheus.Collector.
func (s *Syncs) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for vmi, count := range s.count {
		to <- Counter(syncsDesc, float64(count), vmi.Namespace, vmi.Name)
	}
}
