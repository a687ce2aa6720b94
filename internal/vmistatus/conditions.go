// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
)

// FindCondition returns the condition of a type as an element of the status, or nil.
func FindCondition(
	status *v1.VirtualMachineInstanceStatus, kind v1.VirtualMachineInstanceConditionType,
) *v1.VirtualMachineInstanceCondition {
	return conditions.Find(status.Conditions, kind)
}

// IsConditionTrue reports whether the status has the condition with status True.
func IsConditionTrue(status *v1.VirtualMachineInstanceStatus, kind v1.VirtualMachineInstanceConditionType) bool {
	return conditions.IsTrue(status.Conditions, kind)
}

// Lost reports whether neither the agent nor the kubelet of the VMI's node responds, so that what the agent reported
// last may be wrong.
func Lost(status *v1.VirtualMachineInstanceStatus) bool {
	silent := FindCondition(status, v1.VirtualMachineInstanceNodeUnresponsive)
	return silent != nil && silent.Status == corev1.ConditionTrue &&
		silent.Reason != v1.VirtualMachineInstanceReasonAgentSilent
}

// IsGoneOrLost reports whether there is no VMI of a name, or it is Lost: its migrations take no slot.
func IsGoneOrLost(ctx context.Context, reader client.Reader, key client.ObjectKey) (bool, error) {
	vmi := &v1.VirtualMachineInstance{}
	if err := reader.Get(ctx, key, vmi); err != nil {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
	return Lost(&vmi.Status), nil
}

// SetCondition adds or replaces a condition and reports whether that changed the status. It sets the times itself: the
// transition time is now if the condition is new or its status changes; otherwise the times stay.
func SetCondition(
	status *v1.VirtualMachineInstanceStatus, condition v1.VirtualMachineInstanceCondition, now metav1.Time,
) bool {
	condition.LastProbeTime, condition.LastTransitionTime = metav1.Time{}, now
	return conditions.Set(&status.Conditions, condition)
}

// RemoveCondition removes the condition of a type and reports whether the status had it.
func RemoveCondition(status *v1.VirtualMachineInstanceStatus, kind v1.VirtualMachineInstanceConditionType) bool {
	return conditions.Remove(&status.Conditions, kind)
}

// SetPhase sets the phase, stamps it and reports whether that changed anything. A phase that the VMI was in before
// keeps its first stamp.
func SetPhase(
	status *v1.VirtualMachineInstanceStatus, phase v1.VirtualMachineInstancePhase, at metav1.Time,
) bool {
	changed := status.Phase != phase
	status.Phase = phase
	return StampPhase(status, phase, at) || changed
}

// StampPhase stamps a phase without setting it, and reports whether it was not stamped yet. It is for phases that were
// passed without a write of their own.
func StampPhase(
	status *v1.VirtualMachineInstanceStatus, phase v1.VirtualMachineInstancePhase, at metav1.Time,
) bool {
	for _, stamp := range status.PhaseTransitionTimestamps {
		if stamp.Phase == phase {
			return false
		}
	}
	status.PhaseTransitionTimestamps = append(status.PhaseTransitionTimestamps,
		v1.VirtualMachineInstancePhaseTransitionTimestamp{Phase: phase, PhaseTransitionTimestamp: at})
	return true
}

// HasPassed reports whether the VMI is or was in a phase.
func HasPassed(status *v1.VirtualMachineInstanceStatus, phase v1.VirtualMachineInstancePhase) bool {
	return status.Phase == phase ||
		slices.ContainsFunc(status.PhaseTransitionTimestamps, func(t v1.VirtualMachineInstancePhaseTransitionTimestamp) bool {
			return t.Phase == phase
		})
}

// MovesState reports whether a migration moves the state of TPM and EFI from one claim to another.
func MovesState(m *v1.VirtualMachineInstanceMigrationState) bool {
	return m != nil && m.SourcePersistentStatePVCName != "" && m.TargetPersistentStatePVCName != "" &&
		m.SourcePersistentStatePVCName != m.TargetPersistentStatePVCName
}

// ReasonLostInMigration is status.reason of a VMI whose guest the source had released and that, as far as is known,
// never ran on the target.
const ReasonLostInMigration = "LostInMigration"

// StateClaims returns the claim that has the VM's state for good and the one that does not, once that is certain. Both
// are empty while ownership of the guest may still be transferred, and if there is one claim for both sides. It is
// certain as soon as the target owns the guest, the migration has failed or the VMI has ended: none of these is ever
// undone.
//
// If the guest was lost in migration, the target's claim is kept: it was complete before the source released the guest,
// and the guest may have run on the target without a record of it.
func StateClaims(status *v1.VirtualMachineInstanceStatus) (keep, drop string) {
	m := status.MigrationState
	record, ok := MigrationRecord(status)
	switch {
	case !ok || !MovesState(m):
		return "", ""
	case record.Owner == protocol.Target, record.Final && status.Reason == ReasonLostInMigration:
		return m.TargetPersistentStatePVCName, m.SourcePersistentStatePVCName
	case record.Failed || record.Final:
		return m.SourcePersistentStatePVCName, m.TargetPersistentStatePVCName
	default:
		return "", ""
	}
}

// moveState records that the state of TPM and EFI is in the target's claim.
func moveState(status *v1.VirtualMachineInstanceStatus) {
	m := status.MigrationState
	if !MovesState(m) {
		return
	}
	for i := range status.VolumeStatus {
		v := &status.VolumeStatus[i]
		claim := v.PersistentVolumeClaimInfo
		if v.Name == m.SourcePersistentStatePVCName && claim != nil && claim.ClaimName == v.Name {
			v.Name, claim.ClaimName = m.TargetPersistentStatePVCName, m.TargetPersistentStatePVCName
		}
	}
}

// VMOf returns the VM that is the controller of a VMI, or nil if there is none. The VMI of a VM has its name.
func VMOf(vmi *v1.VirtualMachineInstance) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(vmi)
	if owner == nil || owner.Kind != v1.VirtualMachineGroupVersionKind.Kind || owner.Name != vmi.Name {
		return nil
	}
	// VMIs that earlier versions created refer to an earlier version of the API.
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil || group.Group != v1.GroupVersion.Group {
		return nil
	}
	return owner
}
