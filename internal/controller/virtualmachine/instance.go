// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Reasons of events and of the condition Failure. KubeVirt's names.
const (
	ReasonSuccessfulCreate = "SuccessfulCreate"
	ReasonFailedCreate     = "FailedCreate"
	ReasonSuccessfulDelete = "SuccessfulDelete"
	ReasonFailedDelete     = "FailedDelete"
	ReasonFailedUpdate     = "FailedUpdateError"
)

// Actions of events.
const (
	actionStart = "StartVM"
	actionStop  = "StopVM"
)

// adoptVMI makes the VM the owner of an instance of its name that has none. An instance with another owner is a
// failure.
func adoptVMI(ctx context.Context, s *Scope) error {
	if s.VMI == nil || metav1.IsControlledBy(s.VMI, s.VM) {
		return nil
	}
	if owner := metav1.GetControllerOf(s.VMI); owner != nil {
		if vmistatus.VMOf(s.VMI) != nil { // an earlier VM of this name, deleted before its instance
			if err := removeVMIFinalizer(ctx, s); err != nil {
				return err
			}
		}
		s.failForeign(fmt.Errorf(
			"VirtualMachineInstance %q already exists and belongs to %s %s (UID %s): the VM cannot run until "+
				"it is deleted", s.VMI.Name, owner.Kind, owner.Name, owner.UID))
		return nil
	}
	if s.VMI.DeletionTimestamp != nil {
		s.failForeign(fmt.Errorf(
			"VirtualMachineInstance %q already exists, belongs to another owner and is being deleted: waiting until it is gone",
			s.VMI.Name))
		return nil
	}
	if err := s.confirmNotDeleted(ctx); err != nil {
		return err
	}
	return s.patchVMI(ctx, func(vmi *v1.VirtualMachineInstance) {
		vmi.OwnerReferences = append(vmi.OwnerReferences,
			*metav1.NewControllerRef(s.VM, v1.VirtualMachineGroupVersionKind))
		controllerutil.AddFinalizer(vmi, v1.VirtualMachineControllerFinalizer)
	})
}

// confirmNotDeleted reads the VM from the API server, because the cache may be behind. A VM that was deleted, or
// deleted and created again, must not adopt anything.
func (s *Scope) confirmNotDeleted(ctx context.Context) error {
	key := client.ObjectKeyFromObject(s.VM)
	fresh := &v1.VirtualMachine{}
	if err := s.APIReader.Get(ctx, key, fresh); err != nil {
		return fmt.Errorf("get VirtualMachine %s before it adopts anything: %w", key, err)
	}
	if fresh.UID != s.VM.UID || fresh.DeletionTimestamp != nil {
		return apierrors.NewConflict(v1.GroupVersion.WithResource("virtualmachines").GroupResource(), s.VM.Name,
			errors.New("it was deleted meanwhile"))
	}
	return nil
}

// failForeign records the failure that an instance has the VM's name but does not belong to it.
func (s *Scope) failForeign(err error) {
	s.fail(ReasonFailedCreate, actionStart, err, createFailed)
	s.VMI = nil
}

// apply carries out an action. The instance is created only when the VM's DataVolumes are ready.
func apply(ctx context.Context, s *Scope, next action, ready bool) error {
	switch next {
	case unhalt:
		if err := startHalted(ctx, s); err != nil || !ready {
			return err
		}
		return createVMI(ctx, s)
	case create:
		if !ready {
			return nil
		}
		return createVMI(ctx, s)
	case remove:
		return deleteVMI(ctx, s)
	default:
		return nil
	}
}

// startHalted changes the strategy to Always, as virt-api does for a start without options.
func startHalted(ctx context.Context, s *Scope) error {
	if err := s.patchVM(ctx, func(vm *v1.VirtualMachine) { vm.SetRunStrategy(v1.RunStrategyAlways) }); err != nil {
		return err
	}
	s.Strategy = v1.RunStrategyAlways
	s.Status.StateChangeRequests = trimRequests(s.Status.StateChangeRequests, s.Strategy, s.VMI)
	return nil
}

// newInstance renders the instance from the VM's expanded template. The VM's own labels and annotations are not copied.
func newInstance(
	vm *v1.VirtualMachine, template *v1.VirtualMachineInstanceTemplateSpec, identity firmware.Record, paused bool,
) *v1.VirtualMachineInstance {
	template = template.DeepCopy()
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Name:        vm.Name,
			Namespace:   vm.Namespace,
			Labels:      template.ObjectMeta.Labels,
			Annotations: template.ObjectMeta.Annotations,
			Finalizers:  []string{v1.VirtualMachineInstanceFinalizer, v1.VirtualMachineControllerFinalizer},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind),
			},
		},
		Spec: template.Spec,
	}
	metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.VirtualMachineGenerationAnnotation,
		strconv.FormatInt(vm.Generation, 10))
	if paused {
		vmi.Spec.StartStrategy = ptr.To(v1.StartStrategyPaused)
	}
	identity.Apply(&vmi.Spec)
	return vmi
}

func createVMI(ctx context.Context, s *Scope) error {
	if s.VM.Spec.Template == nil {
		s.Failure = &kit.Failure{Reason: ReasonFailedCreate, Message: "spec.template is missing"}
		return nil
	}
	template, err := s.expandedTemplate(ctx)
	if err != nil {
		return s.failReference(err)
	}
	switch err := recordRevision(ctx, s); {
	case apierrors.IsConflict(err):
		return err // The VM is started from the spec that it has now.
	case err != nil:
		s.fail(ReasonFailedCreate, actionStart, err, createFailed)
		return err
	}
	paused := startRequested(s) &&
		s.Status.StateChangeRequests[0].Data[v1.StartRequestDataPausedKey] == v1.StartRequestDataPausedTrue
	vmi := newInstance(s.VM, template, s.identity, paused)
	vmi.Spec.Architecture = s.architecture(template)
	nameReferences(vmi, &s.Status)
	err = s.Client.Create(ctx, vmi)
	if apierrors.IsAlreadyExists(err) {
		// The cache is behind. The next reconciliation reads the instance and checks its owner.
		s.RequeueAfter = outcome.Sooner(s.RequeueAfter, cacheRetry)
		return s.loadLive(ctx)
	}
	if err != nil {
		s.fail(ReasonFailedCreate, actionStart, err, createFailed)
		return fmt.Errorf("create VirtualMachineInstance %s: %w", vmi.Name, err)
	}
	s.VMI = vmi
	s.Recorder.Eventf(s.VM, vmi, corev1.EventTypeNormal, ReasonSuccessfulCreate, actionStart,
		"Started the virtual machine by creating the new virtual machine instance %s", vmi.Name)
	s.Status.StateChangeRequests = trimRequests(s.Status.StateChangeRequests, s.Strategy, vmi)
	if err := deleteOldRevisions(ctx, s); err != nil {
		// The VM has started. The next start retries, and the garbage collector deletes them with the VM.
		log.FromContext(ctx).Error(err, "Cannot remove the revisions of earlier starts")
	}
	return nil
}

// loadLive reads the instance from the API server, for the status.
func (s *Scope) loadLive(ctx context.Context) error {
	vmi := &v1.VirtualMachineInstance{}
	if err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(s.VM), vmi); err != nil {
		return fmt.Errorf("get VirtualMachineInstance %s, which exists: %w", client.ObjectKeyFromObject(s.VM), err)
	}
	if metav1.IsControlledBy(vmi, s.VM) {
		s.VMI = vmi
	}
	return nil
}

func deleteVMI(ctx context.Context, s *Scope) error {
	if s.VMI.DeletionTimestamp != nil {
		return nil
	}
	err := s.Client.Delete(ctx, s.VMI, client.Preconditions{UID: ptr.To(s.VMI.UID)})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		s.fail(ReasonFailedDelete, actionStop, err, failureFormats{
			event:     "Error deleting virtual machine instance " + s.VMI.Name + ": %v",
			condition: "Failure attempting to delete VMI: %v",
		})
		return fmt.Errorf("delete VirtualMachineInstance %s: %w", s.VMI.Name, err)
	}
	s.Recorder.Eventf(s.VM, s.VMI, corev1.EventTypeNormal, ReasonSuccessfulDelete, actionStop,
		"Stopped the virtual machine by deleting the virtual machine instance %v", s.VMI.UID)
	// This reconciliation already writes the status Stopping. The finalizer is removed in a later one: the deletion
	// changed the resource version of the instance.
	s.deleted = true
	s.VMI.DeletionTimestamp = ptr.To(metav1.NewTime(s.Now))
	return nil
}

// removeVMI deletes the instance of a deleted VM, or orphans it if the deletion has the propagation policy Orphan. The
// garbage collector removes the owner reference as well, before or after virt-controller.
func removeVMI(ctx context.Context, s *Scope) error {
	if s.VMI == nil {
		return nil
	}
	owner := metav1.GetControllerOf(s.VMI)
	orphan := controllerutil.ContainsFinalizer(s.VM, metav1.FinalizerOrphanDependents)
	switch {
	case owner != nil && owner.UID != s.VM.UID:
		s.VMI = nil // another owner's
		return nil
	case owner != nil && !orphan:
		return deleteVMI(ctx, s)
	case owner == nil && !controllerutil.ContainsFinalizer(s.VMI, v1.VirtualMachineControllerFinalizer):
		s.VMI = nil // never the VM's, or orphaned already
		return nil
	}
	err := s.patchVMI(ctx, func(vmi *v1.VirtualMachineInstance) {
		vmi.OwnerReferences = slices.DeleteFunc(vmi.OwnerReferences, func(o metav1.OwnerReference) bool {
			return o.UID == s.VM.UID
		})
		controllerutil.RemoveFinalizer(vmi, v1.VirtualMachineControllerFinalizer)
	})
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	s.VMI = nil
	return nil
}

// removeVMIFinalizer removes the VM's finalizer from a deleted instance that has ended.
func removeVMIFinalizer(ctx context.Context, s *Scope) error {
	vmi := s.VMI
	if vmi == nil || s.deleted || vmi.DeletionTimestamp == nil || !vmi.IsFinal() ||
		!controllerutil.ContainsFinalizer(vmi, v1.VirtualMachineControllerFinalizer) {
		return nil
	}
	return kit.RemoveFinalizer(ctx, s.Client, &s.VMI, v1.VirtualMachineControllerFinalizer)
}

// finalizeWithoutVM removes the VM's finalizer from a deleted instance whose VM no longer exists, because its finalizer
// was removed by another client.
func finalizeWithoutVM(ctx context.Context, s *Scope, key client.ObjectKey) error {
	vmi := &v1.VirtualMachineInstance{}
	if err := s.Client.Get(ctx, key, vmi); err != nil {
		return client.IgnoreNotFound(err)
	}
	owner := vmistatus.VMOf(vmi)
	if owner == nil && metav1.GetControllerOf(vmi) != nil {
		return nil
	}
	if vmi.DeletionTimestamp == nil || !controllerutil.ContainsFinalizer(vmi, v1.VirtualMachineControllerFinalizer) {
		return nil
	}
	// The cache may not show the VM yet. A VM of this name with another UID is not the owner.
	vm := &v1.VirtualMachine{}
	err := s.APIReader.Get(ctx, key, vm)
	if another := err == nil && owner != nil && owner.UID != vm.UID; !another && !apierrors.IsNotFound(err) {
		return err
	}
	s.VMI = vmi
	return removeVMIFinalizer(ctx, s)
}

// failureFormats are KubeVirt's formats of a failure's event and condition. Each has one %v for the error.
type failureFormats struct{ event, condition string }

var createFailed = failureFormats{
	event: "Error creating virtual machine instance: %v", condition: "Failure while starting VMI: %v",
}

// fail sets the failure for the condition, and the event to record after the status was written.
func (s *Scope) fail(reason, action string, err error, formats failureFormats) {
	s.Failure = &kit.Failure{
		Reason: reason, Message: fmt.Sprintf(formats.condition, err),
		Events: []kit.FailureEvent{{Reason: reason, Action: action, Note: fmt.Sprintf(formats.event, err)}},
	}
}
