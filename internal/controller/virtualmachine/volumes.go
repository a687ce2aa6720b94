// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/decide/liveupdate"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonVolumesUpdate is the reason of the condition Failure when the claims of a running instance cannot be changed to
// the template's. KubeVirt's name.
const ReasonVolumesUpdate = "VolumesUpdateError"

// KubeVirt's texts.
const (
	// volumesNeedRestart is the message of the condition RestartRequired, before the fields.
	volumesNeedRestart = "the volumes replacement is effective only after restart"
	// onlyRevert is the error for a second change of claims before the first one is done.
	onlyRevert = "The volume can only be reverted to the previous version during the update"
	// reasonInstanceLost is the reason of the condition ManualRecoveryRequired.
	reasonInstanceLost = "VMI was removed or was final during the volume migration"
)

// errVolumes wraps errors of volume migrations that may resolve without a restart.
var errVolumes = errors.New("volumes cannot be updated")

// volumeState is how the claims in the template, in the instance's spec and in use by the guest relate.
type volumeState int

const (
	// volumesUnchanged: the instance has the template's claims, and its guest uses them.
	volumesUnchanged volumeState = iota
	// volumesChanged: the template names other claims.
	volumesChanged
	// volumesRecorded: the instance's status has the destinations, its spec does not name them yet.
	volumesRecorded
	// volumesMigrating: the instance's status and spec have the destinations.
	volumesMigrating
	// volumesReverted: the template names the claims again that the guest uses.
	volumesReverted
	// volumesChangedAgain: the template names neither the sources nor the destinations.
	volumesChangedAgain
)

// compareVolumes compares the claims of the template with those of the instance and those that its guest uses.
func compareVolumes(template *v1.VirtualMachineInstanceTemplateSpec, vmi *v1.VirtualMachineInstance) volumeState {
	if !vmistatus.MovesVolumes(&vmi.Status) {
		if len(changedClaims(template, vmi)) == 0 {
			return volumesUnchanged
		}
		return volumesChanged
	}
	desired := claimsOf(template.Spec.Volumes)
	toSources, toDestinations := true, true
	for _, moved := range vmi.Status.MigratedVolumes {
		toSources = toSources && moved.SourcePVCInfo != nil && desired[moved.VolumeName] == moved.SourcePVCInfo.ClaimName
		toDestinations = toDestinations && moved.DestinationPVCInfo != nil &&
			desired[moved.VolumeName] == moved.DestinationPVCInfo.ClaimName
	}
	for name := range changedClaims(template, vmi) {
		recorded := vmistatus.Migrated(&vmi.Status, name) != nil
		toDestinations, toSources = toDestinations && recorded, toSources && recorded
	}
	switch {
	case toSources:
		return volumesReverted
	case !toDestinations:
		return volumesChangedAgain
	case vmistatus.NamesDestinations(vmi):
		return volumesMigrating
	default:
		return volumesRecorded
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

// changedClaims returns the template's claims that differ from those in the instance's spec, by volume name.
func changedClaims(template *v1.VirtualMachineInstanceTemplateSpec, vmi *v1.VirtualMachineInstance) map[string]string {
	has, out := claimsOf(vmi.Spec.Volumes), map[string]string{}
	for name, claim := range claimsOf(template.Spec.Volumes) {
		if old, known := has[name]; known && old != claim {
			out[name] = claim
		}
	}
	return out
}

// migratesVolumes reports whether changed claims are applied to a running guest by a migration.
func (s *Scope) migratesVolumes() bool {
	return s.LiveUpdate && s.wantsVolumeMigration()
}

func (s *Scope) wantsVolumeMigration() bool {
	return ptr.Deref(s.VM.Spec.UpdateVolumesStrategy,
		v1.UpdateVolumesStrategyReplacement) == v1.UpdateVolumesStrategyMigration
}

// updateVolumes handles changed claims, and reports whether the other changes of the template may be applied.
func (s *Scope) updateVolumes(ctx context.Context) (bool, error) {
	moving, restart, err := s.syncVolumes(ctx)
	if errors.Is(err, errVolumes) {
		s.Failure = &kit.Failure{Reason: ReasonVolumesUpdate,
			Message: fmt.Sprintf("error encountered while handling volumes update requests: %v", err)}
		err = nil
	}
	s.diff.movingVolumes = moving
	if s.diff.restart == "" {
		s.diff.restart = restart
	}
	return s.diff.known && s.Failure == nil, err
}

// syncVolumes does the next step of a change of claims. It returns whether the change is pending, and why it needs a
// restart, if so. Each step is one write; the last one changes the instance's spec (see package vmistatus). The VM's
// status is written first, because it must record that the claims in the template may be empty even if the instance is
// lost.
func (s *Scope) syncVolumes(ctx context.Context) (pending bool, restart string, err error) {
	state := compareVolumes(s.withoutPlugs(s.VM.Spec.Template), s.VMI)
	switch state {
	case volumesUnchanged:
		s.Status.VolumeUpdateState = nil
		return false, "", nil
	case volumesReverted:
		return true, "", s.revertVolumes(ctx)
	case volumesChangedAgain:
		return true, "", fmt.Errorf("%w: %s", errVolumes, onlyRevert)
	case volumesMigrating:
		return true, "", nil
	}
	if !s.migratesVolumes() || len(s.diff.changed) > 0 {
		if state == volumesRecorded {
			return true, "", fmt.Errorf("%w: %s", errVolumes, onlyRevert)
		}
		changed := changedClaims(s.VM.Spec.Template, s.VMI)
		return false, liveupdate.Naming(volumesNeedRestart,
			liveupdate.ClaimFields(s.VM.Spec.Template.Spec.Volumes, func(name string) bool {
				return changed[name] != ""
			})), nil
	}
	if refusal := s.checkMigration(); refusal != nil {
		return false, refusal.Error(), nil //nolint:nilerr // the error is the reason for a restart
	}
	if state == volumesRecorded {
		return true, "", s.setClaims(ctx, true)
	}
	return s.startVolumeMigration(ctx)
}

// checkMigration returns an error if no migration can move the changed claims. KubeVirt's messages.
func (s *Scope) checkMigration() error {
	changed := changedClaims(s.VM.Spec.Template, s.VMI)
	if err := checkMovable(s.VM.Spec.Template, s.VMI, changed); err != nil {
		return err
	}
	condition := vmistatus.FindCondition(&s.VMI.Status, v1.VirtualMachineInstanceIsStorageLiveMigratable)
	if condition != nil && condition.Status == corev1.ConditionFalse {
		return fmt.Errorf("cannot migrate the volumes as the VMI isn't migratable: %s", condition.Message)
	}
	return checkRemaining(s.VMI, changed)
}

// startVolumeMigration records sources and destinations of the volumes.
func (s *Scope) startVolumeMigration(ctx context.Context) (pending bool, restart string, err error) {
	if s.VMI.Status.Phase != v1.Running || s.migrates {
		return true, "", nil // A change of the instance, or the end of the migration, triggers the next reconciliation.
	}
	moves, err := s.describeMoves(ctx)
	if err != nil {
		var unmovable *unmovableError
		if errors.As(err, &unmovable) {
			return false, unmovable.Error(), nil
		}
		return true, "", err
	}
	// 1. In the VM's status. The write triggers the next reconciliation.
	s.Status.VolumeUpdateState = &v1.VolumeUpdateState{
		VolumeMigrationState: &v1.VolumeMigrationState{MigratedVolumes: moves}}
	if !equality.Semantic.DeepEqual(s.VM.Status.VolumeUpdateState, s.Status.VolumeUpdateState) {
		return true, "", nil
	}
	// 2. In the instance's status, so that the agents keep using the source claims.
	after := s.VMI.DeepCopy()
	after.Status.MigratedVolumes = moves
	if err := s.writeVMIStatus(ctx, after); err != nil {
		return true, "", err
	}
	// 3. In the instance's spec, for the target Pod.
	return true, "", s.setClaims(ctx, true)
}

// revertVolumes reverts a change of claims. A migration that is in progress is aborted. It may finish first: then the
// guest uses the destinations, and reverting is another change.
func (s *Scope) revertVolumes(ctx context.Context) error {
	if vmistatus.Migrating(&s.VMI.Status) {
		if s.VMI.Status.MigrationState.AbortRequested {
			return nil
		}
		after := s.VMI.DeepCopy()
		after.Status.MigrationState.AbortRequested = true
		return s.writeVMIStatus(ctx, after)
	}
	if err := s.setClaims(ctx, false); err != nil {
		return err
	}
	after := s.VMI.DeepCopy()
	after.Status.MigratedVolumes = nil
	vmistatus.SetCondition(&after.Status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceVolumesChange, Status: corev1.ConditionFalse,
		Reason: v1.VirtualMachineInstanceReasonVolumesChangeCancellation,
	}, metav1.NewTime(s.Now))
	if err := s.writeVMIStatus(ctx, after); err != nil {
		return err
	}
	s.Status.VolumeUpdateState = nil
	return nil
}

// setClaims writes the destination or the source claims to the instance's spec.
func (s *Scope) setClaims(ctx context.Context, destinations bool) error {
	desired := s.VMI.DeepCopy()
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
		for j := range desired.Spec.Volumes {
			if to := &desired.Spec.Volumes[j]; to.Name == from.Name && claim != nil && claim.ClaimName == from.WrittenClaim() {
				*to = *from.DeepCopy()
			}
		}
	}
	return s.replaceVMI(ctx, desired)
}

func (s *Scope) writeVMIStatus(ctx context.Context, after *v1.VirtualMachineInstance) error {
	if _, err := vmistatus.Patch(ctx, s.Client, vmistatus.Controller, s.VMI, after); err != nil {
		return err
	}
	s.VMI = after
	return nil
}

// describeMoves describes the source and destination claims of changed volumes.
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
		moves = append(moves, v1.StorageMigratedVolumeInfo{VolumeName: volume.Name, SourcePVCInfo: source,
			DestinationPVCInfo: destination})
	}
	return moves, nil
}

// destinationClaim describes a claim, or returns an error if it is not ready to be a destination.
func (s *Scope) destinationClaim(ctx context.Context, volume, name string) (*v1.PersistentVolumeClaimInfo, error) {
	key := client.ObjectKey{Namespace: s.VM.Namespace, Name: name}
	claim, err := kit.Read(ctx, key, &corev1.PersistentVolumeClaim{}, s.Client)
	switch {
	case err != nil:
		return nil, err
	case claim == nil:
		return nil, fmt.Errorf("%w: PersistentVolumeClaim %s of volume %s does not exist, waiting for it", errVolumes, key,
			volume)
	case claim.DeletionTimestamp != nil, claim.Status.Phase == corev1.ClaimLost:
		return nil, fmt.Errorf("%w: PersistentVolumeClaim %s of volume %s is being deleted or has lost its PersistentVolume",
			errVolumes, key, volume)
	}
	if dv := s.dataVolumes[name]; dv != nil && !datavolume.Usable(dv) && !datavolume.WaitsForConsumer(dv) {
		return nil, fmt.Errorf("%w: DataVolume %s of volume %s is not ready yet, its phase is %q", errVolumes, key, volume,
			dv.Status.Phase)
	}
	if vmistatus.IsBlockClaim(claim) {
		return virtualmachineinstance.ClaimInfo(claim, virtualmachineinstance.Overheads{}), nil
	}
	overheads, err := virtualmachineinstance.ReadOverheads(ctx, s.APIReader, s.DataVolumes, key)
	if err != nil {
		return nil, err
	}
	return virtualmachineinstance.ClaimInfo(claim, overheads), nil
}

// unmovableError is why a migration can never move the volumes.
type unmovableError struct{ message string }

// Error returns the message for the condition RestartRequired.
func (e *unmovableError) Error() string { return e.message }

// checkMovable returns an error for volumes that a migration cannot move. KubeVirt's messages
// (pkg/virt-controller/watch/volume-migration).
func checkMovable(
	template *v1.VirtualMachineInstanceTemplateSpec, vmi *v1.VirtualMachineInstance, changed map[string]string,
) error {
	var filesystems, shareable, luns []string
	for i := range template.Spec.Volumes {
		name := template.Spec.Volumes[i].Name
		if changed[name] == "" {
			continue
		}
		devices := &vmi.Spec.Domain.Devices
		if slices.ContainsFunc(devices.Filesystems, func(f v1.Filesystem) bool { return f.Name == name }) {
			filesystems = append(filesystems, name)
			continue
		}
		at := slices.IndexFunc(devices.Disks, func(d v1.Disk) bool { return d.Name == name })
		switch {
		case at < 0:
		case devices.Disks[at].Shareable != nil && *devices.Disks[at].Shareable:
			shareable = append(shareable, name)
		case devices.Disks[at].LUN != nil:
			luns = append(luns, name)
		}
	}
	var faults []string
	for _, found := range []struct {
		kind  string
		names []string
	}{{"filesystems", filesystems}, {"shareable", shareable}, {"luns", luns}} {
		if len(found.names) > 0 {
			faults = append(faults, fmt.Sprintf("%s: %v", found.kind, found.names))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return &unmovableError{"invalid volumes to update with migration: " + strings.Join(faults, " ")}
}

// checkRemaining returns an error if a volume that does not move has a claim that the target node cannot use.
func checkRemaining(vmi *v1.VirtualMachineInstance, changed map[string]string) error {
	volumes := claimsOf(vmi.Spec.Volumes)
	for _, status := range vmi.Status.VolumeStatus {
		info := status.PersistentVolumeClaimInfo
		if info == nil || volumes[status.Name] == "" || changed[status.Name] != "" ||
			slices.Contains(info.AccessModes, corev1.ReadWriteMany) {
			continue
		}
		return &unmovableError{fmt.Sprintf(
			"cannot migrate the VM. The volume %s is RWO and not included in the migration volumes", status.Name)}
	}
	return nil
}

// checkSize returns an error if a claim is known to be smaller than a disk. The overhead of a file system is known only
// on its node.
func checkSize(volume string, size int64, claim *v1.PersistentVolumeClaimInfo) error {
	has := claim.Capacity.Storage().Value()
	if has == 0 {
		has = claim.Requests.Storage().Value()
	}
	if has >= size {
		return nil
	}
	return &unmovableError{fmt.Sprintf(
		"cannot migrate volume %s: its disk has %d bytes, and PersistentVolumeClaim %s only %d. Use a larger claim",
		volume, size, claim.ClaimName, has)}
}
