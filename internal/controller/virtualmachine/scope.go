// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtualmachine keeps a VM's instance as its run strategy and its requests want it, and tells in the VM's
// status what the instance does. Each file is one concern; Run has the order.
package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/datavolume"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Scope is one reconciliation of one VM.
type Scope struct {
	// Client reads from the cache and writes to the API server. Live reads from the API server.
	Client client.Client
	Live   client.Reader
	// Recorder takes events, after what they tell about has happened.
	Recorder events.EventRecorder
	// DataVolumes reads those of the importer.
	DataVolumes datavolume.Reader
	// Now is one time for the whole reconciliation.
	Now time.Time

	// VM is what the API server has. Writes of metadata refresh it; its status stays as it was read until the status
	// is written.
	VM *v1.VirtualMachine
	// Status is the status to be.
	Status v1.VirtualMachineStatus
	// LiveUpdate says that changes of the template reach a running instance where that is possible. Otherwise they wait
	// for the next start.
	LiveUpdate bool
	// LiveMetadata are the annotations and labels of the template that reach a running instance.
	LiveMetadata podspec.LiveMetadata
	// Strategy is the run strategy in force.
	Strategy v1.VirtualMachineRunStrategy
	// VMI is the VM's instance, or nil. One that belongs to somebody else is nil.
	VMI *v1.VirtualMachineInstance
	// Failure is why the VM is not as it should be, or nil.
	Failure *Failure
	// RequeueAfter is when to reconcile again without being woken, or 0.
	RequeueAfter time.Duration

	// deleted says that this reconciliation deleted the instance.
	deleted bool
	// dataVolumes are those of the VM's volumes that there are, by name. noImporter says that the cluster has none at all.
	dataVolumes map[string]*cdi.DataVolume
	noImporter  bool
	// starting says that there is to be an instance.
	starting bool
	// claims are those of the VM's volumes, by name, read while they decide about the printable status.
	claims map[string]*corev1.PersistentVolumeClaim
	// step is how the instance relates to the template.
	step step
}

// Failure is the condition Failure.
type Failure struct {
	// Reason is one of KubeVirt's, see the constants.
	Reason string
	// Message says what failed and why.
	Message string

	// event is what is sent once the status shows the failure, or nil.
	event *failureEvent
}

// failureEvent is the event of a failure. Its reason and its words may differ from those of the condition.
type failureEvent struct{ reason, action, note string }

// Run reconciles the VM. The order matters where a number says why.
func Run(ctx context.Context, s *Scope) error {
	s.Status = *s.VM.Status.DeepCopy()
	err := act(ctx, s)
	if err != nil && s.Failure == nil && !apierrors.IsConflict(err) {
		s.Failure = &Failure{Reason: ReasonFailedUpdate, Message: err.Error()}
	}
	// 1. The status is written even if something failed: it says what failed.
	computeStatus(s)
	if statusErr := writeStatus(ctx, s); statusErr != nil {
		return errors.Join(err, statusErr)
	}
	if err != nil {
		return err
	}
	// The garbage collector orphans revisions before a deleted VM may go, for as long as it takes.
	if err := sortRevisions(ctx, s); err != nil {
		return err
	}
	// 2. How the instance ended is on record before it may go.
	if err := releaseVMI(ctx, s); err != nil {
		return err
	}
	// 3. The VM goes last.
	return releaseVM(ctx, s)
}

func act(ctx context.Context, s *Scope) error {
	strategy, err := s.VM.RunStrategy()
	if err != nil {
		return fmt.Errorf("run strategy of VirtualMachine %s: %w", client.ObjectKeyFromObject(s.VM), err)
	}
	s.Strategy = strategy
	if s.VM.DeletionTimestamp != nil {
		return removeVMI(ctx, s)
	}
	// 1. The finalizer comes before the instance that it waits for.
	if err := holdVM(ctx, s); err != nil {
		return err
	}
	// 2. What is not ours is not acted on.
	if err := adoptVMI(ctx, s); err != nil {
		return err
	}
	// 3. Requests that are done must not be done twice.
	s.Status.StateChangeRequests = trimRequests(s.Status.StateChangeRequests, s.VMI)
	// 4. A failed start is counted while the instance that failed is still there.
	s.Status.StartFailure = countStartFailure(s)
	// 5. What an instance that has ended left behind decides whether there may be another one.
	recoverVolumes(s)
	// 6. DataVolumes are made whether the VM runs or not. A stop does not wait for them.
	if err := readDataVolumes(ctx, s); err != nil {
		return err
	}
	wanted := decide(s)
	s.starting = wanted == create || wanted == unhalt
	ready, err := provision(ctx, s, wanted)
	if err != nil {
		return err
	}
	if err := apply(ctx, s, wanted, ready); err != nil {
		return err
	}
	if err := readClaims(ctx, s); err != nil {
		return err
	}
	// 7. An instance that is about to go need not follow the template.
	return syncInstance(ctx, s)
}

// Load reads the instance of the VM's name.
func (s *Scope) Load(ctx context.Context) error {
	vmi := &v1.VirtualMachineInstance{}
	err := s.Client.Get(ctx, client.ObjectKeyFromObject(s.VM), vmi)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(s.VM), err)
	}
	s.VMI = vmi
	return nil
}

func holdVM(ctx context.Context, s *Scope) error {
	if slices.Contains(s.VM.Finalizers, v1.VirtualMachineControllerFinalizer) {
		return nil
	}
	return s.patchVM(ctx, func(vm *v1.VirtualMachine) {
		vm.Finalizers = append(vm.Finalizers, v1.VirtualMachineControllerFinalizer)
	})
}

// releaseVM lets a deleted VM go when its instance is gone. With the finalizer "orphan" the instance was let go instead.
func releaseVM(ctx context.Context, s *Scope) error {
	if s.VM.DeletionTimestamp == nil || s.VMI != nil ||
		!slices.Contains(s.VM.Finalizers, v1.VirtualMachineControllerFinalizer) {
		return nil
	}
	// A cache that is behind must not let the VM go from under an instance.
	vmi := &v1.VirtualMachineInstance{}
	err := s.Live.Get(ctx, client.ObjectKeyFromObject(s.VM), vmi)
	switch {
	case err == nil && metav1.IsControlledBy(vmi, s.VM):
		s.RequeueAfter = cacheRetry
		return nil
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("get VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(s.VM), err)
	}
	return client.IgnoreNotFound(s.patchVM(ctx, func(vm *v1.VirtualMachine) {
		vm.Finalizers = slices.DeleteFunc(vm.Finalizers, func(f string) bool {
			return f == v1.VirtualMachineControllerFinalizer
		})
	}))
}

// cacheRetry is when to reconcile again after the API server knew more than the cache.
const cacheRetry = 100 * time.Millisecond

func (s *Scope) patchVM(ctx context.Context, change func(*v1.VirtualMachine)) error {
	changed := s.VM.DeepCopy()
	change(changed)
	lock := client.MergeFromWithOptions(s.VM, client.MergeFromWithOptimisticLock{})
	if err := s.Client.Patch(ctx, changed, lock); err != nil {
		return fmt.Errorf("patch metadata of VirtualMachine %s: %w", client.ObjectKeyFromObject(s.VM), err)
	}
	s.VM = changed
	return nil
}

func (s *Scope) patchVMI(ctx context.Context, change func(*v1.VirtualMachineInstance)) error {
	changed := s.VMI.DeepCopy()
	change(changed)
	lock := client.MergeFromWithOptions(s.VMI, client.MergeFromWithOptimisticLock{})
	if err := s.Client.Patch(ctx, changed, lock); err != nil {
		return fmt.Errorf("patch metadata of VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(s.VMI), err)
	}
	s.VMI = changed
	return nil
}
