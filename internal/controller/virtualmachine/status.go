// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/optional"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Reasons of the VM's condition Ready if the instance has no such condition. KubeVirt's names.
const (
	reasonNoInstance  = "VMINotExists"
	reasonNoCondition = "VMIConditionMissing"
)

// ownConditions are the VM's own conditions; all others are copied from its instance.
var ownConditions = []v1.VirtualMachineConditionType{
	v1.VirtualMachineReady, v1.VirtualMachineFailure, v1.VirtualMachineRestartRequired,
	v1.VirtualMachineManualRecoveryRequired,
}

// computeStatus computes the status from what this reconciliation observed.
func computeStatus(s *Scope) {
	status := &s.Status
	status.Created = s.VMI != nil
	ready := false
	if s.VMI != nil {
		ready = vmistatus.IsConditionTrue(&s.VMI.Status, v1.VirtualMachineInstanceReady)
	}
	status.Ready = ready
	status.PrintableStatus = printableStatus(s)
	setRunStrategy(s)
	setGenerations(s)
	mirrorConditions(s)
	setReady(s)
	kit.SetFailure(&s.Status.Conditions, v1.VirtualMachineFailure, s.Failure, s.Now)
	setRestartRequired(s)
}

// setRunStrategy records the strategy once the VM has had an instance. A change to RerunOnFailure is recorded only
// after the start that it causes, so that a delayed start is not lost.
func setRunStrategy(s *Scope) {
	before := s.VM.Status.RunStrategy
	waits := s.Strategy == v1.RunStrategyRerunOnFailure && before != s.Strategy && s.VMI == nil
	if (before != "" || s.Status.Created) && !waits {
		s.Status.RunStrategy = s.Strategy
	}
}

// setGenerations sets which generation of the spec is in effect, and which one should be. They differ only while an
// instance runs that is not up to date with its template.
func setGenerations(s *Scope) {
	s.Status.DesiredGeneration = s.VM.Generation
	s.Status.ObservedGeneration = s.VM.Generation
	if alive(s) && s.VMI.DeletionTimestamp == nil && !s.diff.upToDate() {
		if made := madeFrom(s.VMI); made != 0 {
			s.Status.ObservedGeneration = made
		}
	}
}

// setRestartRequired sets or removes the condition RestartRequired. It is not changed while the template of the
// instance is unknown, and removed when there is no instance.
func setRestartRequired(s *Scope) {
	if alive(s) && s.VMI.DeletionTimestamp == nil && !s.diff.known {
		return
	}
	if s.diff.restart == "" {
		conditions.Remove(&s.Status.Conditions, v1.VirtualMachineRestartRequired)
		return
	}
	conditions.Set(&s.Status.Conditions, v1.VirtualMachineCondition{
		Type: v1.VirtualMachineRestartRequired, Status: corev1.ConditionTrue, Message: s.diff.restart,
		LastTransitionTime: metav1.NewTime(s.Now),
	})
}

// mirrorConditions copies the instance's conditions to the VM and removes those that the instance no longer has.
func mirrorConditions(s *Scope) {
	seen := map[v1.VirtualMachineConditionType]bool{}
	if s.VMI != nil {
		for _, condition := range s.VMI.Status.Conditions {
			kind := v1.VirtualMachineConditionType(condition.Type)
			if slices.Contains(ownConditions, kind) {
				continue
			}
			seen[kind] = true
			conditions.Set(&s.Status.Conditions, v1.VirtualMachineCondition{
				Type: kind, Status: condition.Status, Reason: condition.Reason, Message: condition.Message,
				LastTransitionTime: condition.LastTransitionTime,
			})
		}
	}
	s.Status.Conditions = slices.DeleteFunc(s.Status.Conditions, func(c v1.VirtualMachineCondition) bool {
		return !seen[c.Type] && !slices.Contains(ownConditions, c.Type)
	})
}

// setReady copies the instance's condition.
func setReady(s *Scope) {
	want := v1.VirtualMachineCondition{
		Type: v1.VirtualMachineReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(s.Now),
	}
	if s.VMI == nil {
		want.Reason, want.Message = reasonNoInstance, "VMI does not exist"
	} else {
		condition := vmistatus.FindCondition(&s.VMI.Status, v1.VirtualMachineInstanceReady)
		if condition == nil {
			want.Reason, want.Message = reasonNoCondition, "VMI is missing the Ready condition"
		} else {
			want.Status, want.Reason, want.Message = condition.Status, condition.Reason, condition.Message
		}
	}
	conditions.Set(&s.Status.Conditions, want)
}

// needsWrite reports whether the status changed. While the VM starts, another reason of Ready=False alone is not
// written: the printable status is Starting all the same.
func needsWrite(s *Scope) bool {
	after := s.Status.DeepCopy()
	before, now := conditions.Find(s.VM.Status.Conditions, v1.VirtualMachineReady),
		conditions.Find(after.Conditions, v1.VirtualMachineReady)
	if s.Status.PrintableStatus == v1.VirtualMachineStatusStarting && before != nil && now != nil &&
		before.Status == now.Status {
		*now = *before
	}
	return !equality.Semantic.DeepEqual(&s.VM.Status, after)
}

// writeStatus writes the status if it changed.
func writeStatus(ctx context.Context, s *Scope) error {
	if !needsWrite(s) {
		return nil
	}
	change := func(vm *v1.VirtualMachine) { vm.Status = s.Status }
	return kit.WriteStatus(ctx, s.Client, &s.VM, change, func(before *v1.VirtualMachine) {
		kit.RecordFailure(s.Recorder, s.VM, before.Status.Conditions, v1.VirtualMachineFailure, s.Failure)
		const failed = v1.VirtualMachineStatusDataVolumeError
		if s.Status.PrintableStatus == failed && before.Status.PrintableStatus != failed {
			s.recordFailedImports()
		}
	})
}

// Reasons of a VMI's condition Synchronized that have a printable status of their own. KubeVirt's names.
const (
	reasonPVCNotFound      = "FailedPvcNotFound"
	reasonErrImagePull     = "ErrImagePull"
	reasonImagePullBackOff = "ImagePullBackOff"
)

// printable is a printable status and the condition under which it applies.
type printable struct {
	status  v1.VirtualMachinePrintableStatus
	applies func(s *Scope) bool
}

// printables are in KubeVirt's order: the first one that applies is shown.
// Source: kubevirt/kubevirt pkg/virt-controller/watch/vm, setPrintableStatus.
var printables = []printable{
	{v1.VirtualMachineStatusTerminating, func(s *Scope) bool { return s.VM.DeletionTimestamp != nil }},
	{v1.VirtualMachineStatusStopping, func(s *Scope) bool {
		return alive(s) && (s.VMI.DeletionTimestamp != nil || stopRequested(s))
	}},
	{v1.VirtualMachineStatusMigrating, func(s *Scope) bool { return alive(s) && transfers(s.VMI) }},
	{v1.VirtualMachineStatusPaused, func(s *Scope) bool {
		return alive(s) && vmistatus.IsConditionTrue(&s.VMI.Status, v1.VirtualMachineInstancePaused)
	}},
	{v1.VirtualMachineStatusRunning, func(s *Scope) bool { return alive(s) && s.VMI.IsRunning() }},
	{v1.VirtualMachineStatusPvcNotFound, outOfSync(reasonPVCNotFound)},
	{v1.VirtualMachineStatusDataVolumeError, anyDataVolume(func(dv *cdi.DataVolume) bool { return datavolume.Problem(dv) != "" })},
	{v1.VirtualMachineStatusUnschedulable, func(s *Scope) bool {
		if !alive(s) {
			return false
		}
		scheduled := vmistatus.FindCondition(&s.VMI.Status, v1.VirtualMachineInstancePodScheduled)
		return scheduled != nil && scheduled.Status == corev1.ConditionFalse &&
			scheduled.Reason == corev1.PodReasonUnschedulable
	}},
	{v1.VirtualMachineStatusProvisioning, anyDataVolume(datavolume.Provisioning)},
	{v1.VirtualMachineStatusWaitingForVolumeBinding, func(s *Scope) bool {
		return (s.starting || alive(s)) && unbound(s)
	}},
	{v1.VirtualMachineStatusErrImagePull, outOfSync(reasonErrImagePull)},
	{v1.VirtualMachineStatusImagePullBackOff, outOfSync(reasonImagePullBackOff)},
	{v1.VirtualMachineStatusStarting, func(s *Scope) bool {
		return alive(s) && (s.VMI.IsUnprocessed() || s.VMI.IsScheduled() || s.VMI.Status.Phase == v1.Scheduling)
	}},
	{v1.VirtualMachineStatusCrashLoopBackOff, func(s *Scope) bool {
		return !alive(s) && s.Status.StartFailure != nil && s.Status.StartFailure.RetryAfterTimestamp != nil
	}},
	{v1.VirtualMachineStatusStopped, func(s *Scope) bool { return !alive(s) }},
}

func printableStatus(s *Scope) v1.VirtualMachinePrintableStatus {
	for _, p := range printables {
		if p.applies(s) {
			return p.status
		}
	}
	return v1.VirtualMachineStatusUnknown
}

// alive reports whether there is an instance that has not ended.
func alive(s *Scope) bool { return s.VMI != nil && !s.VMI.IsFinal() }

// transfers reports whether a migration of the guest has started and not ended.
func transfers(vmi *v1.VirtualMachineInstance) bool {
	state := vmi.Status.MigrationState
	return state != nil && state.StartTimestamp != nil && !state.Completed && !state.Failed
}

func outOfSync(reason string) func(*Scope) bool {
	return func(s *Scope) bool {
		if !alive(s) {
			return false
		}
		condition := vmistatus.FindCondition(&s.VMI.Status, v1.VirtualMachineInstanceSynchronized)
		return condition != nil && condition.Status == corev1.ConditionFalse && condition.Reason == reason
	}
}

// anyDataVolume matches VMs of which a DataVolume satisfies a predicate.
func anyDataVolume(is func(*cdi.DataVolume) bool) func(*Scope) bool {
	return func(s *Scope) bool {
		for _, dv := range s.dataVolumes {
			if is(dv) {
				return true
			}
		}
		return false
	}
}

func unbound(s *Scope) bool {
	for _, claim := range s.claims {
		if claim.Status.Phase != corev1.ClaimBound {
			return true
		}
	}
	return false
}

// setSnapshotStatuses reports which volumes a snapshot can include. The report stays as it was while it is not known
// whether the cluster has VolumeSnapshotClasses.
func setSnapshotStatuses(ctx context.Context, s *Scope) error {
	if s.VM.DeletionTimestamp != nil || s.VM.Spec.Template == nil {
		return nil
	}
	vm := &v1.VirtualMachine{ObjectMeta: s.VM.ObjectMeta, Spec: s.VM.Spec}
	// A preference may add a TPM. What the VM refers to may be unknown, which is reported as its failure.
	if s.resolved && !vm.Spec.Template.Spec.HasPersistentState() {
		if template, err := s.expandedTemplate(ctx); err == nil {
			vm.Spec.Template = template
		}
	}
	volumes, err := volumesnapshot.Volumes(ctx, s.Client, s.VolumeSnapshots, vm)
	switch {
	case errors.Is(err, optional.ErrUnknown):
		return nil
	case err != nil:
		return err
	}
	s.Status.VolumeSnapshotStatuses = capture.Statuses(volumes)
	return nil
}

// Tracking is the cluster's configuration of the tracking of changed blocks.
type Tracking struct {
	// Enabled reports whether the feature gate is on, and Selected which VMs are tracked.
	Enabled  bool
	Selected clusterconfig.TrackedVMs
}

// setTracking sets whether the changed blocks of the VM's disks are tracked, or will be after its next start. It keeps
// the state if the VM is being deleted, and until the cache has the VM's namespace, whose event enqueues the VM.
// KubeVirt's states.
func setTracking(ctx context.Context, s *Scope) error {
	if s.VM.DeletionTimestamp != nil {
		return nil
	}
	selected := false
	if !s.Tracking.Selected.None() {
		var err error
		if selected, err = kit.SelectsForTracking(ctx, s.Client, s.Tracking.Selected, s.VM); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	state := trackingState(s, selected)
	switch before := s.Status.ChangedBlockTracking; {
	case state == v1.ChangedBlockTrackingUndefined:
		s.Status.ChangedBlockTracking = nil
	case before == nil:
		s.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: state}
	default:
		before.State = state
	}
	return nil
}

func trackingState(s *Scope, selected bool) v1.ChangedBlockTrackingState {
	runs := alive(s)
	tracked := runs && backup.WantsTracking(&s.VMI.Status)
	starts := runs && s.VMI.Status.NodeName == ""
	before := s.Status.ChangedBlockTracking
	switch {
	case !s.Tracking.Enabled && tracked:
		return v1.ChangedBlockTrackingPendingRestart
	case !s.Tracking.Enabled && selected:
		return v1.ChangedBlockTrackingFGDisabled
	case !s.Tracking.Enabled:
		return v1.ChangedBlockTrackingUndefined
	case selected && tracked:
		return s.VMI.Status.ChangedBlockTracking.State
	case selected && runs && !starts, !selected && tracked:
		return v1.ChangedBlockTrackingPendingRestart
	case selected && !runs && before != nil && before.State == v1.ChangedBlockTrackingEnabled:
		return v1.ChangedBlockTrackingEnabled // A VM that is stopped keeps the state.
	case selected:
		return v1.ChangedBlockTrackingInitializing
	case before != nil:
		return v1.ChangedBlockTrackingDisabled
	default:
		return v1.ChangedBlockTrackingUndefined
	}
}
