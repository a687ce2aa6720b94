// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinerestore

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/restore"
	"github.com/vireo-project/vireo/internal/optimistic"
)

// failedDataVolume is a DataVolume that could not be created.
type failedDataVolume struct {
	name string
	err  error
}

// refusedError is the error of a VM that the API server rejects as invalid.
type refusedError struct {
	vm client.ObjectKey
	// what is what was to be done with the VM: created or restored.
	what string
	err  error
}

// Error implements error.
func (e *refusedError) Error() string {
	return fmt.Sprintf("VirtualMachine %s cannot be %s: %v", e.vm, e.what, e.err)
}

// Unwrap returns the API server's error.
func (e *refusedError) Unwrap() error { return e.err }

// apply applies the changes of a step until one fails, and reports whether there are any. They do not depend on each
// other. There may be hundreds, and the next reconciliation tries the rest again. So the checks come first, then the
// changes that unlock the target, and then those that free storage for new claims.
func apply(ctx context.Context, s *scope, observed *restore.Observed, step *restore.Step) (bool, error) {
	if step.Check != nil {
		if err := check(ctx, s, step.Check.DeepCopy()); err != nil {
			return false, err
		}
	}
	var changes []func() error
	add := func(change func() error) { changes = append(changes, change) }
	if step.Unlock {
		add(func() error { return unlock(ctx, s) })
	}
	if step.Lock {
		add(func() error { return lock(ctx, s) })
	}
	for _, object := range step.Update {
		add(func() error { return update(ctx, s, observed.Live(object), object) })
	}
	for _, object := range step.Delete {
		add(func() error { return kit.Delete(ctx, s.Client, object, kit.Unchanged(object)) })
	}
	for _, object := range step.Create {
		add(func() error { return create(ctx, s, object) })
	}
	count := len(changes)
	if step.Stop { // A stop may already be in progress.
		add(func() error { return stop(ctx, s) })
	}
	for _, change := range changes {
		if err := change(); err != nil {
			return true, err
		}
	}
	return count > 0, nil
}

// check returns a refusedError if the API server would not accept the target as a later step creates or writes it.
func check(ctx context.Context, s *scope, vm *v1.VirtualMachine) error {
	if s.target == nil {
		return create(ctx, s, vm, client.DryRunAll)
	}
	err := update(ctx, s, s.target, vm, client.DryRunAll)
	if isRefused(err) {
		return &refusedError{client.ObjectKeyFromObject(vm), "restored", err}
	}
	return err
}

func isRefused(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) }

// create creates an object. If it exists already, because the cache was stale, it is not changed.
func create(ctx context.Context, s *scope, object client.Object, options ...client.CreateOption) error {
	err := s.Client.Create(ctx, object, options...)
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	switch object.(type) {
	case *cdi.DataVolume:
		s.failed = append(s.failed, failedDataVolume{object.GetName(), err})
		return fmt.Errorf("Failed to create restore DataVolume: %w", err) //nolint:staticcheck // KubeVirt's message
	case *v1.VirtualMachine:
		if isRefused(err) {
			return &refusedError{client.ObjectKeyFromObject(object), "created", err}
		}
	}
	return fmt.Errorf("create %T %s: %w", object, client.ObjectKeyFromObject(object), err)
}

// update writes a changed copy of an object, if the object has not changed since it was read. Fields that our types do
// not have are kept.
func update(ctx context.Context, s *scope, live, changed client.Object, options ...client.PatchOption) error {
	if err := s.Client.Patch(ctx, changed, optimistic.MergeFrom(live), options...); err != nil {
		return fmt.Errorf("patch %T %s: %w", changed, client.ObjectKeyFromObject(live), err)
	}
	return nil
}

// lock sets restoreInProgress: the target does not start until it is removed.
func lock(ctx context.Context, s *scope) error {
	return s.patchTargetStatus(ctx,
		func(status *v1.VirtualMachineStatus) { status.RestoreInProgress = ptr.To(s.restore.Name) })
}

// unlock removes restoreInProgress, and memoryDumpRequest, because the volume of the memory dump is not restored.
func unlock(ctx context.Context, s *scope) error {
	return s.patchTargetStatus(ctx,
		func(status *v1.VirtualMachineStatus) { status.RestoreInProgress, status.MemoryDumpRequest = nil, nil })
}

// unlockAbandoned unlocks the VMs that are locked for a restore that does not restore them.
func (r *Reconciler) unlockAbandoned(ctx context.Context, key client.ObjectKey) error {
	vms, err := kit.AbandonedVMs(ctx, r.Client, r.APIReader, LockIndex, key,
		func(vmRestore *v1beta1.VirtualMachineRestore) string { return vmRestore.Spec.Target.Name })
	for i := range vms {
		if err := client.IgnoreNotFound(unlock(ctx, &scope{Reconciler: r, target: &vms[i]})); err != nil {
			return err
		}
	}
	return err
}

func (s *scope) patchTargetStatus(ctx context.Context, change func(*v1.VirtualMachineStatus)) error {
	target := s.target
	return kit.WriteStatus(ctx, s.Client, &target, func(vm *v1.VirtualMachine) { change(&vm.Status) })
}

// stop stops the target permanently, by its run strategy, as virt-api does for the verb stop.
func stop(ctx context.Context, s *scope) error {
	strategy, err := s.target.RunStrategy()
	if err != nil {
		return fmt.Errorf("run strategy of VirtualMachine %s: %w", client.ObjectKeyFromObject(s.target), err)
	}
	switch strategy {
	case v1.RunStrategyHalted:
		return nil // The VM's reconciler deletes the VMI.
	case v1.RunStrategyManual, v1.RunStrategyRerunOnFailure:
		requests := s.target.Status.StateChangeRequests
		if len(requests) == 1 && requests[0].Action == v1.StopRequest && ptr.Equal(requests[0].UID, &s.vmi.UID) {
			return nil
		}
		return s.patchTargetStatus(ctx, func(status *v1.VirtualMachineStatus) {
			stop := v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: ptr.To(s.vmi.UID)}
			status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{stop.MadeUnder(strategy)}
		})
	default:
		_, err := optimistic.Patch(ctx, s.Client, s.target,
			func(vm *v1.VirtualMachine) { vm.SetRunStrategy(v1.RunStrategyHalted) })
		if err != nil {
			return fmt.Errorf("stop VirtualMachine %s: %w", client.ObjectKeyFromObject(s.target), err)
		}
		return nil
	}
}

// recordFailedDataVolumes records KubeVirt's event, on the restore as in KubeVirt: a new VM does not exist yet.
func (s *scope) recordFailedDataVolumes() {
	for _, f := range s.failed {
		s.Recorder.Eventf(s.restore, nil, corev1.EventTypeWarning, snapshot.RestoreDataVolumeCreateErrorEvent, actionRestore,
			"Error creating restore DataVolume %s: %v", f.name, f.err)
	}
}
