// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// guestState is what is known about a VMI.
type guestState struct {
	node         string
	unresponsive bool
}

// fleet follows VMs and VMIs.
type fleet struct {
	mu    sync.Mutex
	ready map[string]bool
	vmis  map[string]guestState
}

// followFleet starts to follow all VMs and VMIs.
func (w *world) followFleet(ctx context.Context) error {
	w.fleet = &fleet{ready: map[string]bool{}, vmis: map[string]guestState{}}
	objects, err := cache.New(w.config, cache.Options{Scheme: w.api.Scheme(), DefaultTransform: withoutSpec})
	if err != nil {
		return err
	}
	for object, change := range map[client.Object]func(any, bool){&v1.VirtualMachine{}: w.fleet.changeVM,
		&v1.VirtualMachineInstance{}: w.fleet.changeVMI} {
		informer, err := objects.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { change(o, true) },
			UpdateFunc: func(_, o any) { change(o, true) },
			DeleteFunc: func(o any) { change(o, false) },
		}); err != nil {
			return err
		}
	}
	go func() {
		if err := objects.Start(ctx); err != nil {
			fmt.Println("scale: follow the VMs:", err)
		}
	}()
	if !objects.WaitForCacheSync(ctx) {
		return ctx.Err()
	}
	return nil
}

// withoutSpec keeps an object's name and status.
func withoutSpec(object any) (any, error) {
	switch o := object.(type) {
	case *v1.VirtualMachine:
		o.Spec, o.ManagedFields = v1.VirtualMachineSpec{}, nil
	case *v1.VirtualMachineInstance:
		o.Spec, o.ManagedFields = v1.VirtualMachineInstanceSpec{}, nil
	}
	return object, nil
}

func (f *fleet) changeVM(object any, exists bool) {
	if tombstone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	vm, ok := object.(*v1.VirtualMachine)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !exists {
		delete(f.ready, vm.Name)
		return
	}
	f.ready[vm.Name] = vm.Status.Ready && vm.Status.PrintableStatus == v1.VirtualMachineStatusRunning
}

func (f *fleet) changeVMI(object any, exists bool) {
	if tombstone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	vmi, ok := object.(*v1.VirtualMachineInstance)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !exists {
		delete(f.vmis, vmi.Name)
		return
	}
	f.vmis[vmi.Name] = guestState{
		node:         vmi.Status.NodeName,
		unresponsive: vmistatus.IsConditionTrue(&vmi.Status, v1.VirtualMachineInstanceNodeUnresponsive),
	}
}

// readyCount returns the number of running VMs, and how many exist.
func (f *fleet) readyCount() (ready, all int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.ready {
		if r {
			ready++
		}
	}
	return ready, len(f.ready)
}

// on returns the number of VMIs on a node, and how many of those report that it does not respond.
func (f *fleet) on(node string) (all, unresponsive int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.vmis {
		if s.node != node {
			continue
		}
		all++
		if s.unresponsive {
			unresponsive++
		}
	}
	return all, unresponsive
}

// gone reports whether there are no VMs, VMIs and launcher Pods.
func (w *world) gone(ctx context.Context) (bool, error) {
	w.fleet.mu.Lock()
	left := len(w.fleet.ready) + len(w.fleet.vmis)
	w.fleet.mu.Unlock()
	if left > 0 {
		return false, nil
	}
	pods := &corev1.PodList{}
	err := w.api.List(ctx, pods, client.InNamespace(namespace), client.Limit(1))
	return len(pods.Items) == 0, err
}
