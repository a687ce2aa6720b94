// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtualmachine starts and stops a VM's VMI according to its run strategy and state change requests, and
// reports the VMI's state in the VM's status. In this package the VMI is called the instance. Each file is one concern;
// Run has the order.
package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/vireo-project/vireo/api/cdi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/outcome"
)

// Scope is one reconciliation of one VM.
type Scope struct {
	// Client reads from the cache and writes to the API server. APIReader reads from the API server.
	Client    client.Client
	APIReader client.Reader
	// Recorder records events, each after the write that it reports.
	Recorder events.EventRecorder
	// DataVolumes reads the importer's DataVolumes.
	DataVolumes datavolume.Reader
	// VolumeSnapshots reads the classes of VolumeSnapshots.
	VolumeSnapshots volumesnapshot.Reader
	// Now is the time of the reconciliation.
	Now time.Time

	// VM is the VM as read. Writes of metadata refresh it; its status changes only when the status is written.
	VM *v1.VirtualMachine
	// Status is the status to write.
	Status v1.VirtualMachineStatus
	// Settings are those of the cluster.
	Settings
	// Strategy is the run strategy in force.
	Strategy v1.VirtualMachineRunStrategy
	// VMI is the VM's instance, or nil if there is none or it has another owner.
	VMI *v1.VirtualMachineInstance
	// Failure is why the VM is not as it should be, or nil.
	Failure *kit.Failure
	// RequeueAfter is when to reconcile again even if nothing changes, or 0.
	RequeueAfter time.Duration

	// identity is that of the VM's guest.
	identity firmware.Record
	// deleted reports whether this reconciliation deleted the instance.
	deleted bool
	// dataVolumes are the existing DataVolumes of the VM's volumes, by name. noImporter reports whether DataVolumes are
	// not installed.
	dataVolumes map[string]*cdi.DataVolume
	noImporter  bool
	// starting reports whether there is to be an instance.
	starting bool
	// claims are those of the VM's volumes, by name, read while they decide about the printable status.
	claims map[string]*corev1.PersistentVolumeClaim
	// migrates reports whether a target exists for a migration of the instance, see readMigrations.
	migrates bool
	// diff is how the instance relates to the template.
	diff templateDiff
	// references are the instance type and the preference of the VM, as far as they were read.
	references map[*reference.Class]client.Object
	// referenceRefs are the references of the status, and resolved reports whether they could be determined and stored.
	referenceRefs map[*reference.Class]*v1.InstancetypeStatusRef
	resolved      bool
	// inferenceWaits reports whether a volume has to be filled before an instance type or a preference can be inferred
	// from it.
	inferenceWaits bool
	// replaced are ControllerRevisions of an old form whose content was stored anew.
	replaced []*appsv1.ControllerRevision
}

// Run reconciles the VM. The numbered comments give the reasons for the order.
func Run(ctx context.Context, s *Scope) error {
	s.Status = *s.VM.Status.DeepCopy()
	err := act(ctx, s)
	if failure := outcome.Failure(err); failure != nil && s.Failure == nil {
		s.Failure = &kit.Failure{Reason: ReasonFailedUpdate, Message: failure.Error()}
	}
	err = errors.Join(err, setSnapshotStatuses(ctx, s), dumpMemory(ctx, s), setTracking(ctx, s))
	// 1. The status is written even if a phase failed: it reports the failure.
	computeStatus(s)
	if statusErr := writeStatus(ctx, s); statusErr != nil {
		return errors.Join(err, statusErr)
	}
	if err != nil {
		return err
	}
	// The garbage collector must be able to orphan the revisions of a deleted VM.
	if err := sortRevisions(ctx, s); err != nil {
		return err
	}
	if err := deleteReferences(ctx, s); err != nil {
		return err
	}
	// 2. The status shows how the instance ended before its finalizer is removed.
	if err := removeVMIFinalizer(ctx, s); err != nil {
		return err
	}
	// 3. The VM's finalizer is removed last.
	return removeVMFinalizer(ctx, s)
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
	// 1. The VM has its finalizer and the record of its identity before it has an instance.
	if err := addVMMetadata(ctx, s); err != nil {
		return err
	}
	// 2. Instances with another owner are not touched.
	if err := adoptVMI(ctx, s); err != nil {
		return err
	}
	// 3. A request must not be executed twice, nor after the user has changed the strategy.
	s.Status.StateChangeRequests = trimRequests(s.Status.StateChangeRequests, s.Strategy, s.VMI)
	// 4. A failed start is counted while the failed instance still exists.
	s.Status.StartFailure = countStartFailure(s)
	// 5. A volume migration that an ended instance did not finish may forbid a start.
	setManualRecovery(s)
	// 6. DataVolumes are made whether the VM runs or not. A stop does not wait for them.
	if err := readDataVolumes(ctx, s); err != nil {
		return err
	}
	next := decide(s)
	s.starting = next == create || next == unhalt
	// 7. Instance type and preference are stored whether the VM runs or not. A stop does not need them.
	if err := s.failReference(resolveReferences(ctx, s)); err != nil {
		return err
	}
	if s.Failure != nil && s.starting {
		next, s.starting = noAction, false
	}
	ready, err := provision(ctx, s, next)
	if err != nil {
		return err
	}
	if err := apply(ctx, s, next, ready && !s.inferenceWaits); err != nil {
		return err
	}
	if err := readClaims(ctx, s); err != nil {
		return err
	}
	// 8. An instance that is being deleted does not follow the template.
	return syncInstance(ctx, s)
}

// Load reads the instance of the VM's name.
func (s *Scope) Load(ctx context.Context) (err error) {
	s.VMI, err = kit.Read(ctx, client.ObjectKeyFromObject(s.VM), &v1.VirtualMachineInstance{}, s.Client)
	return err
}

// removeVMFinalizer removes the finalizer of a deleted VM when its instance no longer exists, or was orphaned.
func removeVMFinalizer(ctx context.Context, s *Scope) error {
	if s.VM.DeletionTimestamp == nil || s.VMI != nil ||
		!controllerutil.ContainsFinalizer(s.VM, v1.VirtualMachineControllerFinalizer) {
		return nil
	}
	// The cache may be behind and not show an instance that exists.
	vmi := &v1.VirtualMachineInstance{}
	err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(s.VM), vmi)
	switch {
	case err == nil && metav1.IsControlledBy(vmi, s.VM):
		s.RequeueAfter = outcome.Sooner(s.RequeueAfter, cacheRetry)
		return nil
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("get VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(s.VM), err)
	}
	return kit.RemoveFinalizer(ctx, s.Client, &s.VM, v1.VirtualMachineControllerFinalizer)
}

// cacheRetry is when to reconcile again if the cache was behind the API server.
const cacheRetry = 100 * time.Millisecond

func (s *Scope) patchVM(ctx context.Context, change func(*v1.VirtualMachine)) error {
	return kit.Patch(ctx, s.Client, &s.VM, change)
}

func (s *Scope) patchVMI(ctx context.Context, change func(*v1.VirtualMachineInstance)) error {
	return kit.Patch(ctx, s.Client, &s.VMI, change)
}
