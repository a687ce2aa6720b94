// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/datavolume"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonVolumesUpdate is the reason of the condition Failure when the claims of a running instance cannot follow the template.
// KubeVirt's name.
const ReasonVolumesUpdate = "VolumesUpdateError"

// KubeVirt's words.
const (
	// volumesNeedRestart is the message of the condition RestartRequired.
	volumesNeedRestart = "the volumes replacement is effective only after restart"
	// onlyBack is the answer to a second change before the first one is done.
	onlyBack = "The volume can only be reverted to the previous version during the update"
	// reasonLostMoving is the reason of the condition ManualRecoveryRequired.
	reasonLostMoving = "VMI was removed or was final during the volume migration"
)

// errVolumes wraps what is wrong with claims that a running guest is to move to, and what time may mend.
var errVolumes = errors.New("volumes cannot be updated")

// volumeStep is what is to be done about the claims of a running instance.
type volumeStep int

const (
	// volumesSettled: the instance has the template's claims, and its guest uses them.
	volumesSettled volumeStep = iota
	// volumesDiffer: the template names others.
	volumesDiffer
	// volumesNamed: it is noted where they move to, and the instance's spec is yet to say so.
	volumesNamed
	// volumesMove: all is said, a migration copies them.
	volumesMove
	// volumesReturn: the template names those again that the guest uses.
	volumesReturn
	// volumesStray: the template names third ones.
	volumesStray
)

// judgeVolumes compares the claims of the template with those of the instance and those that its guest uses.
func judgeVolumes(template *v1.VirtualMachineInstanceTemplateSpec, vmi *v1.VirtualMachineInstance) volumeStep {
	if !vmistatus.MovesVolumes(&vmi.Status) {
		if len(changedClaims(template, vmi)) == 0 {
			return volumesSettled
		}
		return volumesDiffer
	}
	wanted := claimsOf(template.Spec.Volumes)
	back, there := true, true
	for _, moved := range vmi.Status.MigratedVolumes {
		back = back && moved.SourcePVCInfo != nil && wanted[moved.VolumeName] == moved.SourcePVCInfo.ClaimName
		there = there && moved.DestinationPVCInfo != nil && wanted[moved.VolumeName] == moved.DestinationPVCInfo.ClaimName
	}
	for name := range changedClaims(template, vmi) {
		there, back = there && vmistatus.Migrated(&vmi.Status, name) != nil, back && vmistatus.Migrated(&vmi.Status, name) != nil
	}
	switch {
	case back:
		return volumesReturn
	case !there:
		return volumesStray
	case vmistatus.NamesDestinations(vmi):
		return volumesMove
	default:
		return volumesNamed
	}
}

func claimsOf(volumes []v1.Volume) map[string]string {
	out := map[string]string{}
	for i := range volumes {
		if claim := volumes[i].WrittenClaim(); claim != "" {
			out[volumes[i].Name] = claim
		}
	}
	return out
}

// changedClaims are the claims that the template has in place of those in the instance's spec, by the volumes' names.
func changedClaims(template *v1.VirtualMachineInstanceTemplateSpec, vmi *v1.VirtualMachineInstance) map[string]string {
	has, out := claimsOf(vmi.Spec.Volumes), map[string]string{}
	for name, claim := range claimsOf(template.Spec.Volumes) {
		if old, known := has[name]; known && old != claim {
			out[name] = claim
		}
	}
	return out
}

// wantsMigration says that changed claims are to be brought to a running guest.
func (s *Scope) wantsMigration() bool {
	return s.LiveUpdate && s.choseMigration()
}

func (s *Scope) choseMigration() bool {
	return ptr.Deref(s.VM.Spec.UpdateVolumesStrategy, v1.UpdateVolumesStrategyReplacement) == v1.UpdateVolumesStrategyMigration
}

// followVolumes does what is to be done about changed claims and says whether the rest of
// the template may follow.
func (s *Scope) followVolumes(ctx context.Context) (bool, error) {
	moving, restart, err := s.syncVolumes(ctx)
	if errors.Is(err, errVolumes) {
		s.Failure = &Failure{Reason: ReasonVolumesUpdate, Message: fmt.Sprintf("Error encountered while handling volumes update requests: %v", err)}
		err = nil
	}
	s.step.moving = moving
	if s.step.restart == "" {
		s.step.restart = restart
	}
	return s.step.known && s.Failure == nil, err
}

// syncVolumes does the next step of a change of claims, and says what the instance waits for. Each step is one write, and the one
// that is not followed by another is the last (see package vmistatus). What is written down first is in the VM's status: whatever
// becomes of the instance, the VM knows that the claims in its template may be empty.
func (s *Scope) syncVolumes(ctx context.Context) (pending bool, restart string, err error) {
	judged := judgeVolumes(s.VM.Spec.Template, s.VMI)
	switch judged {
	case volumesSettled:
		s.Status.VolumeUpdateState = nil
		return false, "", nil
	case volumesReturn:
		return true, "", s.takeVolumesBack(ctx)
	case volumesStray:
		return true, "", fmt.Errorf("%w: %s", errVolumes, onlyBack)
	case volumesMove:
		return true, "", nil
	}
	if !s.wantsMigration() || s.step.restart == specNeedsRestart {
		if judged == volumesNamed {
			return true, "", fmt.Errorf("%w: %s", errVolumes, onlyBack)
		}
		return false, volumesNeedRestart, nil
	}
	if refusal := s.mayMoveVolumes(); refusal != nil {
		return false, refusal.Error(), nil //nolint:nilerr // it is told as what needs a restart
	}
	if judged == volumesNamed {
		return true, "", s.nameVolumes(ctx, true)
	}
	return s.beginMoving(ctx)
}

// mayMoveVolumes says why no migration can bring the changed claims to the guest. KubeVirt's words.
func (s *Scope) mayMoveVolumes() error {
	changed := changedClaims(s.VM.Spec.Template, s.VMI)
	if err := checkMovable(s.VM.Spec.Template, s.VMI, changed); err != nil {
		return err
	}
	condition := vmistatus.FindCondition(&s.VMI.Status, v1.VirtualMachineInstanceIsStorageLiveMigratable)
	if condition != nil && condition.Status == corev1.ConditionFalse {
		return fmt.Errorf("cannot migrate the volumes as the VMI isn't migratable: %s", condition.Message)
	}
	return checkStaying(s.VMI, changed)
}

// beginMoving notes where volumes move to.
func (s *Scope) beginMoving(ctx context.Context) (pending bool, restart string, err error) {
	if s.VMI.Status.Phase != v1.Running || migrationUnderWay(s.VMI) {
		return true, "", nil // The instance wakes us when that is over.
	}
	moves, err := s.describeMoves(ctx)
	if err != nil {
		var unfit *unfitError
		if errors.As(err, &unfit) {
			return false, unfit.Error(), nil
		}
		return true, "", err
	}
	// 1. For the VM itself. The write wakes us.
	s.Status.VolumeUpdateState = &v1.VolumeUpdateState{VolumeMigrationState: &v1.VolumeMigrationState{MigratedVolumes: moves}}
	if !equality.Semantic.DeepEqual(s.VM.Status.VolumeUpdateState, s.Status.VolumeUpdateState) {
		return true, "", nil
	}
	// 2. For the agents, who stay with the claims that the guest uses.
	after := s.VMI.DeepCopy()
	after.Status.MigratedVolumes = moves
	if err := s.writeVMIStatus(ctx, after); err != nil {
		return true, "", err
	}
	// 3. For the Pod that the guest moves to.
	return true, "", s.nameVolumes(ctx, true)
}

// takeVolumesBack ends a change that the template took back. A migration that is on its way may still be the quicker one: then
// the guest uses the new claims, and to go back is another change.
func (s *Scope) takeVolumesBack(ctx context.Context) error {
	if migrationUnderWay(s.VMI) {
		if s.VMI.Status.MigrationState.AbortRequested {
			return nil
		}
		after := s.VMI.DeepCopy()
		after.Status.MigrationState.AbortRequested = true
		return s.writeVMIStatus(ctx, after)
	}
	if err := s.nameVolumes(ctx, false); err != nil {
		return err
	}
	after := s.VMI.DeepCopy()
	after.Status.MigratedVolumes = nil
	vmistatus.SetCondition(&after.Status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceVolumesChange, Status: corev1.ConditionFalse, Reason: v1.VirtualMachineInstanceReasonVolumesChangeCancellation,
	}, metav1.NewTime(s.Now))
	if err := s.writeVMIStatus(ctx, after); err != nil {
		return err
	}
	s.Status.VolumeUpdateState = nil
	return nil
}

// migrationUnderWay says that the agents have a migration that has not ended. Its volumes stay as they are until then.
func migrationUnderWay(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Status.MigrationState != nil && !vmistatus.HasEnded(vmi.Status.MigrationState)
}

// nameVolumes makes the instance's spec name the claims that the guest moves to, or those that it uses.
func (s *Scope) nameVolumes(ctx context.Context, destinations bool) error {
	wanted := s.VMI.DeepCopy()
	for i := range s.VM.Spec.Template.Spec.Volumes {
		from := &s.VM.Spec.Template.Spec.Volumes[i]
		moved := vmistatus.Migrated(&s.VMI.Status, from.Name)
		if moved == nil {
			continue
		}
		claim := moved.SourcePVCInfo
		if destinations {
			claim = moved.DestinationPVCInfo
		}
		for j := range wanted.Spec.Volumes {
			if to := &wanted.Spec.Volumes[j]; to.Name == from.Name && claim != nil && claim.ClaimName == from.WrittenClaim() {
				*to = *from.DeepCopy()
			}
		}
	}
	return s.replaceVMI(ctx, wanted)
}

func (s *Scope) writeVMIStatus(ctx context.Context, after *v1.VirtualMachineInstance) error {
	if _, err := vmistatus.Patch(ctx, s.Client, vmistatus.Controller, s.VMI, after); err != nil {
		return err
	}
	s.VMI = after
	return nil
}

// describeMoves describes the claims that volumes come from and go to.
func (s *Scope) describeMoves(ctx context.Context) ([]v1.StorageMigratedVolumeInfo, error) {
	changed := changedClaims(s.VM.Spec.Template, s.VMI)
	var moves []v1.StorageMigratedVolumeInfo
	for i := range s.VMI.Spec.Volumes {
		volume := &s.VMI.Spec.Volumes[i]
		to := changed[volume.Name]
		if to == "" {
			continue
		}
		destination, err := s.destinationClaim(ctx, volume.Name, to)
		if err != nil {
			return nil, err
		}
		source := &v1.PersistentVolumeClaimInfo{ClaimName: volume.WrittenClaim()}
		size := int64(0)
		for _, status := range s.VMI.Status.VolumeStatus {
			if status.Name == volume.Name && status.PersistentVolumeClaimInfo != nil {
				source, size = status.PersistentVolumeClaimInfo.DeepCopy(), status.Size
			}
		}
		if size == 0 {
			return nil, fmt.Errorf("%w: the size of the disk of volume %s is not known yet", errVolumes, volume.Name)
		}
		if err := checkSize(volume.Name, size, destination); err != nil {
			return nil, err
		}
		moves = append(moves, v1.StorageMigratedVolumeInfo{VolumeName: volume.Name, SourcePVCInfo: source, DestinationPVCInfo: destination})
	}
	return moves, nil
}

// destinationClaim describes a claim that can take a disk.
func (s *Scope) destinationClaim(ctx context.Context, volume, name string) (*v1.PersistentVolumeClaimInfo, error) {
	claim, key := &corev1.PersistentVolumeClaim{}, client.ObjectKey{Namespace: s.VM.Namespace, Name: name}
	err := s.Client.Get(ctx, key, claim)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: PersistentVolumeClaim %s of volume %s does not exist, waiting for it", errVolumes, key, volume)
	case err != nil:
		return nil, fmt.Errorf("get PersistentVolumeClaim %s: %w", key, err)
	case claim.DeletionTimestamp != nil, claim.Status.Phase == corev1.ClaimLost:
		return nil, fmt.Errorf("%w: PersistentVolumeClaim %s of volume %s is being deleted or has lost its PersistentVolume", errVolumes, key, volume)
	}
	if dv := s.dataVolumes[name]; dv != nil && !datavolume.Usable(dv) && !datavolume.WaitsForConsumer(dv) {
		return nil, fmt.Errorf("%w: DataVolume %s of volume %s is not ready yet, its phase is %q", errVolumes, key, volume, dv.Status.Phase)
	}
	if virtualmachineinstance.IsBlock(claim) {
		return virtualmachineinstance.ClaimInfo(claim, virtualmachineinstance.Overheads{}), nil
	}
	overheads, err := virtualmachineinstance.ReadOverheads(ctx, s.Live, s.DataVolumes, key)
	if err != nil {
		return nil, err
	}
	return virtualmachineinstance.ClaimInfo(claim, overheads), nil
}
