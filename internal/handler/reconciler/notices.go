// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Notices is the source of VMIs of which a hypervisor reports a change. All hypervisors report through one event loop of libvirt's, so it never
// blocks, and holds each VMI at most once however often it is reported.
type Notices struct {
	mu    sync.Mutex
	queue queue
	// early are those that come before the controller runs.
	early sets.Set[types.NamespacedName]
}

// NewNotices makes Notices for one controller.
func NewNotices() *Notices { return &Notices{early: sets.New[types.NamespacedName]()} }

// Notify has a VMI reconciled.
func (n *Notices) Notify(vmi types.NamespacedName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.queue == nil {
		n.early.Insert(vmi)
		return
	}
	n.queue.Add(reconcile.Request{NamespacedName: vmi})
}

// Start gives the VMIs to a controller's queue from now on.
func (n *Notices) Start(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queue = q
	for vmi := range n.early {
		q.Add(reconcile.Request{NamespacedName: vmi})
	}
	n.early = nil
	return nil
}
