// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"fmt"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
)

// TestTriggersNeverBlock reports events as libvirt's event loop does, before the controller starts and while it takes
// nothing from its queue. No call may block, every VMI must be in the queue, and only once.
func TestTriggersNeverBlock(t *testing.T) {
	const vmis, eventsOfEach = 100, 1000
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	triggers := agentvmi.NewTriggers()
	flood := func(prefix string) {
		var connections sync.WaitGroup
		for n := range vmis {
			connections.Go(func() {
				for range eventsOfEach {
					triggers.Enqueue(types.NamespacedName{Namespace: "default", Name: fmt.Sprint(prefix, n)})
				}
			})
		}
		connections.Wait()
	}
	flood("before")
	if got := queue.Len(); got != 0 {
		t.Errorf("%d VMIs are in the queue before the controller has started", got)
	}
	if err := triggers.Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	flood("after")
	flood("before")
	if got := queue.Len(); got != 2*vmis {
		t.Errorf("%d VMIs are in the queue, want %d", got, 2*vmis)
	}
	seen := sets.New[reconcile.Request]()
	for range 2 * vmis {
		request, _ := queue.Get()
		seen.Insert(request)
	}
	if seen.Len() != 2*vmis {
		t.Errorf("%d different VMIs are in the queue, want %d", seen.Len(), 2*vmis)
	}
}

// TestTriggersAreLevelTriggered checks that an event that arrives while its VMI is reconciled causes one more
// reconcile.
func TestTriggersAreLevelTriggered(t *testing.T) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	triggers := agentvmi.NewTriggers()
	if err := triggers.Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	vmi := types.NamespacedName{Namespace: "default", Name: "vmi"}
	triggers.Enqueue(vmi)
	request, _ := queue.Get()
	for range 10 {
		triggers.Enqueue(vmi)
	}
	if got := queue.Len(); got != 0 {
		t.Errorf("the VMI is in the queue %d times while it is reconciled", got)
	}
	queue.Done(request)
	if got := queue.Len(); got != 1 {
		t.Errorf("the VMI is in the queue %d times after the reconcile, want once", got)
	}
}
