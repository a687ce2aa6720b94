// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package tracing exports one trace for each start of a VMI and for each migration, when it has ended. It derives them
// from timestamps in the objects, so no other package takes part in it.
package tracing

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/otlp"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Watcher watches VMIs and migrations, and exports the traces of those that it observes to end. It runs on the leader.
type Watcher struct {
	Cache    cache.Cache
	Exporter Exporter
	Clock    clock.PassiveClock

	// started is when the Watcher started. What ended before may have been exported by another process.
	started time.Time
	mu      sync.Mutex
	// requested contains the times at which starts of VMs were requested, by the VM's UID, until the VMI's start has
	// ended.
	requested map[types.UID]time.Time
}

// creationSlack is by how much a request may appear to be later than the creation of its VMI, because creation times
// are whole seconds of another clock.
const creationSlack = 5 * time.Second

// Exporter exports traces.
type Exporter interface {
	Export(ctx context.Context, key string, root *otlp.Span)
	Close() error
}

// Start watches until the context ends, and then exports what is still queued.
func (w *Watcher) Start(ctx context.Context) error {
	w.prepare()
	for object, handler := range map[client.Object]toolscache.ResourceEventHandler{
		&v1.VirtualMachine{}: toolscache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(object any, initial bool) {
				if vm, ok := object.(*v1.VirtualMachine); ok && !initial {
					w.observeVM(&v1.VirtualMachine{}, vm)
				}
			},
			UpdateFunc: updates(w.observeVM),
			DeleteFunc: deletions(func(vm *v1.VirtualMachine) { w.forgetRequest(vm.UID) }),
		},
		&v1.VirtualMachineInstance{}: w.instances(ctx),
		&v1.VirtualMachineInstanceMigration{}: toolscache.ResourceEventHandlerFuncs{
			UpdateFunc: updates(func(before,
				after *v1.VirtualMachineInstanceMigration) {
				w.observeMigration(ctx, before, after)
			}),
		},
	} {
		informer, err := w.Cache.GetInformer(ctx, object)
		if err != nil {
			return fmt.Errorf("watch %T to trace it: %w", object, err)
		}
		// Each handler has its own goroutine and queue, so it delays no reconciliation.
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return fmt.Errorf("watch %T to trace it: %w", object, err)
		}
		defer func() { _ = informer.RemoveEventHandler(registration) }()
	}
	<-ctx.Done()
	if err := w.Exporter.Close(); err != nil {
		log.FromContext(ctx).V(1).Info("Stopped before all traces were exported", "reason", err.Error())
	}
	return nil
}

// instances returns the handler of VMIs.
func (w *Watcher) instances(ctx context.Context) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: updates(func(before, after *v1.VirtualMachineInstance) { w.observeVMI(ctx, before, after) }),
		// The start may not have ended, or its end may not have been observed.
		DeleteFunc: deletions(func(vmi *v1.VirtualMachineInstance) { w.takeRequest(vmi) }),
	}
}

func (w *Watcher) prepare() { w.started, w.requested = w.Clock.Now(), map[types.UID]time.Time{} }

// updates returns a function that calls another one with both versions of an object.
func updates[T any](observe func(before, after T)) func(before, after any) {
	return func(before, after any) {
		old, oldOK := before.(T)
		updated, updatedOK := after.(T)
		if oldOK && updatedOK {
			observe(old, updated)
		}
	}
}

// deletions returns a function that calls another one with the last version of an object.
func deletions[T any](observe func(T)) func(any) {
	return func(object any) {
		if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		if last, ok := object.(T); ok {
			observe(last)
		}
	}
}

// observeVM stores when a start of a VM is requested, which no object contains, and removes it when the request is
// withdrawn.
func (w *Watcher) observeVM(before, after *v1.VirtualMachine) {
	switch {
	case requestsStart(after) && !requestsStart(before), !after.Status.Created && wantsVMI(after) && !wantsVMI(before):
		at := w.Clock.Now()
		if before.UID == "" {
			at = after.CreationTimestamp.Time
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.requested[after.UID] = at
	case !wantsVMI(after) && wantsVMI(before), requestsStart(before) && onlyStops(after):
		w.forgetRequest(after.UID)
	}
}

func (w *Watcher) forgetRequest(vm types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.requested, vm)
}

// takeRequest returns when the start of a VMI's VM was requested, and removes it. A request that was made after the VMI
// was created is for the next VMI, and is kept.
func (w *Watcher) takeRequest(vmi *v1.VirtualMachineInstance) time.Time {
	vm := vmistatus.VMOf(vmi)
	if vm == nil {
		return time.Time{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.requested[vm.UID]
	if at.After(vmi.CreationTimestamp.Add(creationSlack)) {
		return time.Time{}
	}
	delete(w.requested, vm.UID)
	return at
}

// wantsVMI reports whether the run strategy of a VM creates a VMI without a request.
func wantsVMI(vm *v1.VirtualMachine) bool {
	strategy, err := vm.RunStrategy()
	return err == nil && (strategy == v1.RunStrategyAlways || strategy == v1.RunStrategyRerunOnFailure ||
		strategy == v1.RunStrategyOnce)
}

func requestsStart(vm *v1.VirtualMachine) bool {
	for i := range vm.Status.StateChangeRequests {
		if vm.Status.StateChangeRequests[i].Action == v1.StartRequest {
			return true
		}
	}
	return false
}

// onlyStops reports whether a VM is to be stopped and not started again.
func onlyStops(vm *v1.VirtualMachine) bool {
	return len(vm.Status.StateChangeRequests) > 0 && !requestsStart(vm)
}

func (w *Watcher) observeVMI(ctx context.Context, before, after *v1.VirtualMachineInstance) {
	end := startEnd(after)
	if end == nil || startEnd(before) != nil {
		return
	}
	requested := w.takeRequest(after)
	if end.PhaseTransitionTimestamp.Time.Before(w.started) {
		return
	}
	w.Exporter.Export(ctx, startKey(after.UID),
		start(after, w.pod(ctx, after.Namespace, podspec.PodName(after)), requested))
}

func (w *Watcher) observeMigration(ctx context.Context, before, after *v1.VirtualMachineInstanceMigration) {
	end := migrationEnd(after)
	if end == nil || migrationEnd(before) != nil || end.PhaseTransitionTimestamp.Time.Before(w.started) {
		return
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := w.Cache.Get(ctx, client.ObjectKey{Namespace: after.Namespace, Name: after.Spec.VMIName}, vmi,
		client.UnsafeDisableDeepCopy); err != nil {
		vmi = nil
	}
	var target *corev1.Pod
	if vmi != nil {
		target = w.pod(ctx, after.Namespace, podspec.TargetPodName(vmi, after.UID))
	}
	w.Exporter.Export(ctx, migrationKey(after.UID), migration(after, target, vmi))
}

// pod returns a Pod of the cache, or nil.
func (w *Watcher) pod(ctx context.Context, namespace, name string) *corev1.Pod {
	pod := &corev1.Pod{}
	if err := w.Cache.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod,
		client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	return pod
}
