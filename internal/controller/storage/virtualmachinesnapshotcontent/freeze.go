// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshotcontent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Problems of a freeze that the agent does not report.
const (
	problemNotKept = "The guest's file systems were not frozen until all snapshots had been taken"
	problemNoGuest = "The guest ended while its file systems were to be frozen"
)

// takeFrozen does the next step of a snapshot of a guest whose file systems are to be frozen. Every decision is made
// with a VMI that was just read from the API server.
func (s *scope) takeFrozen(
	ctx context.Context, guest capture.Guest, requests []*csi.VolumeSnapshot, abandoned bool,
) error {
	vmi, err := s.readVMI(ctx)
	if err != nil {
		return err
	}
	view := s.view(vmi, abandoned)
	if guest.Settled {
		// The intent may be gone, and the record may be that of another freeze.
		s.taken.Thawed = true
		return s.clearIntent(ctx, vmi, view)
	}
	action, intent := freeze.DecideController(view)
	if action == freeze.WriteIntent && intent.End == freeze.Open {
		freezes, waits, err := s.mayFreeze(ctx, vmi, requests)
		if err != nil || waits {
			return err
		}
		if !freezes {
			action = freeze.Take
		}
	}
	switch action {
	case freeze.WriteIntent:
		return s.writeIntent(ctx, vmi, intent)
	case freeze.Take:
		return s.createFrozen(ctx, vmi, view, requests)
	case freeze.Done:
		return s.settle(ctx, guest, vmi, view)
	default:
		s.requeue(view.Intent.Deadline.Sub(s.now))
		return nil
	}
}

// createFrozen creates the VolumeSnapshots that are missing. If one is refused while the guest is frozen, the guest is
// thawed in the same reconciliation. The snapshot can still be taken, without a freeze.
func (s *scope) createFrozen(
	ctx context.Context, vmi *v1.VirtualMachineInstance, view freeze.ControllerView, requests []*csi.VolumeSnapshot,
) error {
	if intent := view.Intent; intent != nil && intent.End == freeze.Open {
		s.requeue(intent.Deadline.Sub(s.now))
	}
	if err := s.create(ctx, requests); err != nil || s.taken.Problem == "" {
		return err
	}
	view.Refused = true
	if action, intent := freeze.DecideController(view); action == freeze.WriteIntent && intent.End == freeze.Cancel {
		return s.writeIntent(ctx, vmi, intent)
	}
	return nil
}

// view returns what decides about the freeze.
func (s *scope) view(vmi *v1.VirtualMachineInstance, abandoned bool) freeze.ControllerView {
	view := freeze.ControllerView{
		Now: s.now, ID: string(s.snapshot.UID), Limit: s.limit(), Abandoned: abandoned, Refused: s.taken.Problem != "",
	}
	if vmi != nil {
		view.Intent, view.Record = freeze.IntentOf(&vmi.Status), freeze.RecordOf(&vmi.Status)
	}
	switch {
	case s.taken.All(s.content):
		view.Snapshots = freeze.AllSnapshots
	case len(s.taken.Snapshots) > 0:
		view.Snapshots = freeze.SomeSnapshots
	}
	return view
}

// limit returns how long the guest may be frozen: half of the time that is left, so that the other half is left to take
// the snapshots without a freeze. Migrations wait for it, so that a user cannot extend it.
func (s *scope) limit() time.Duration {
	deadline := capture.Deadline(s.snapshot)
	if deadline.IsZero() {
		return v1beta1.DefaultFailureDeadline
	}
	return min(deadline.Sub(s.now)/2, v1beta1.DefaultFailureDeadline)
}

// writeIntent writes an intent to the VMI's status with the resource version that was read. The write triggers the next
// step.
func (s *scope) writeIntent(ctx context.Context, vmi *v1.VirtualMachineInstance, intent *freeze.Intent) error {
	changed := vmi.DeepCopy()
	changed.Status.SnapshotFreeze = intent.Status()
	if _, err := vmistatus.Patch(ctx, s.Client, vmistatus.Controller, vmi, changed); client.IgnoreNotFound(err) != nil {
		return err
	}
	s.requeue(max(intent.Deadline.Sub(s.now), takeRetry))
	return nil
}

// settle stores how the freeze ended, before the status reports that the snapshots have been taken.
func (s *scope) settle(
	ctx context.Context, guest capture.Guest, vmi *v1.VirtualMachineInstance, view freeze.ControllerView,
) error {
	s.taken.Thawed = true
	if view.Abandoned {
		return s.clearIntent(ctx, vmi, view)
	}
	guest.Settled, guest.Broken = true, !view.Consistent()
	if view.Record.ID == view.ID {
		guest.Frozen, guest.Problem = view.Record.Lasted(), view.Record.Problem
	}
	switch {
	case !guest.Broken:
		guest.Problem = ""
	case guest.Problem == "" && vmi == nil:
		guest.Problem = problemNoGuest
	case guest.Problem == "":
		guest.Problem = problemNotKept
	}
	before := capture.GuestOf(s.content)
	if err := s.storeGuest(ctx, guest); err != nil {
		return err
	}
	if vmi != nil && guest.Broken && !before.Broken {
		s.Recorder.Eventf(vmi, s.content, corev1.EventTypeWarning, snapshot.FreezeErrorEvent, actionTake,
			"Snapshot %s is not consistent: %s", s.snapshot.Name, guest.Problem)
	}
	return s.clearIntent(ctx, vmi, view)
}

// clearIntent removes this snapshot's intent when it is stored how the freeze ended: other freezes of the guest wait
// for that.
func (s *scope) clearIntent(ctx context.Context, vmi *v1.VirtualMachineInstance, view freeze.ControllerView) error {
	if !view.MayClear() {
		return nil
	}
	changed := vmi.DeepCopy()
	changed.Status.SnapshotFreeze = nil
	_, err := vmistatus.Patch(ctx, s.Client, vmistatus.Controller, vmi, changed)
	return client.IgnoreNotFound(err)
}

// readVMI reads the VMI of the VM from the API server. It returns nil if there is none, if it has ended, or if the VMI
// of that name does not belong to the VM. A VMI with this snapshot's intent does belong to the VM, even if it has lost
// its owner since: its guest has to be thawed.
func (s *scope) readVMI(ctx context.Context) (*v1.VirtualMachineInstance, error) {
	if s.content.Spec.Source.VirtualMachine == nil {
		return nil, nil
	}
	key := client.ObjectKey{Namespace: s.content.Namespace, Name: s.content.Spec.Source.VirtualMachine.Name}
	vmi, err := kit.Read(ctx, key, &v1.VirtualMachineInstance{}, s.APIReader)
	if err != nil || vmi == nil || vmi.IsFinal() ||
		!metav1.IsControlledBy(vmi, s.content.Spec.Source.VirtualMachine) && !s.hasIntent(vmi) {
		return nil, err
	}
	return vmi, nil
}

// mayFreeze reports whether the guest is to be frozen, and whether that has to wait: the guest is not frozen while it
// is known that a VolumeSnapshot cannot be requested, or for a migration.
func (s *scope) mayFreeze(
	ctx context.Context, vmi *v1.VirtualMachineInstance, requests []*csi.VolumeSnapshot,
) (freezes, waits bool, err error) {
	if s.taken.Problem != "" {
		return false, true, nil
	}
	if freezes, err = s.needsFreeze(ctx, vmi); err != nil || !freezes {
		return false, false, err
	}
	if waits, err = s.waitsForMigration(ctx, vmi); err != nil || waits {
		return true, waits, err
	}
	err = s.try(ctx, requests)
	return true, s.taken.Problem != "", err
}

// needsFreeze reports whether the guest is to be frozen. What was requested from another guest, or while there is none,
// does not become consistent. Users may create contents of any VM: only the snapshot for which a VM is locked freezes
// its guest.
func (s *scope) needsFreeze(ctx context.Context, vmi *v1.VirtualMachineInstance) (bool, error) {
	if vmi == nil {
		return false, nil
	}
	if locked, err := s.isLocked(ctx); err != nil || !locked {
		return false, err
	}
	requested, err := s.isAnyRequested(ctx)
	return !requested, err
}

// isLocked reports whether the VM is locked for this snapshot, which virt-controller writes to its status before the
// content exists.
func (s *scope) isLocked(ctx context.Context) (bool, error) {
	of := s.content.Spec.Source.VirtualMachine
	vm, err := kit.Read(ctx, client.ObjectKey{Namespace: s.content.Namespace, Name: of.Name}, &v1.VirtualMachine{},
		s.APIReader)
	if err != nil || vm == nil {
		return false, err
	}
	return vm.UID == of.UID && ptr.Deref(vm.Status.SnapshotInProgress, "") == s.snapshot.Name, nil
}

// hasIntent reports whether the VMI has the intent of this snapshot, which virt-controller has written.
func (s *scope) hasIntent(vmi *v1.VirtualMachineInstance) bool {
	intent := freeze.IntentOf(&vmi.Status)
	return s.snapshot != nil && intent != nil && intent.ID == string(s.snapshot.UID)
}
