// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Triggers is the controller's source of VMIs whose hypervisor reported a change. Callbacks on libvirt's event loop, which all
// connections share, call Enqueue. So it never blocks, and contains a VMI at most once however many events there are.
type Triggers struct {
	mu    sync.Mutex
	queue queue
	// pending are the VMIs that were enqueued before the controller started.
	pending sets.Set[types.NamespacedName]
}

// NewTriggers returns Triggers for one controller.
func NewTriggers() *Triggers { return &Triggers{pending: sets.New[types.NamespacedName]()} }

// Enqueue triggers a reconciliation of a VMI. It does not block.
func (t *Triggers) Enqueue(vmi types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queue == nil {
		t.pending.Insert(vmi)
		return
	}
	t.queue.Add(reconcile.Request{NamespacedName: vmi})
}

// Start implements source.Source: from now on VMIs are added to the controller's queue, which drops duplicates.
func (t *Triggers) Start(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue = q
	for vmi := range t.pending {
		q.Add(reconcile.Request{NamespacedName: vmi})
	}
	t.pending = nil
	return nil
}
