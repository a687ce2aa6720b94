// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/specsupport"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Messages of failures in events. KubeVirt's texts, which users search for.
const (
	failedBusy     = "VMI is not eligible for migration because another migration job is in progress."
	failedShutdown = "Migration failed vmi shutdown during migration."
	failedCanceled = "Migration failed due to being canceled"
	failedPodEnded = "Migration failed because target pod shutdown during migration"
	failedPodGone  = "Migration target pod was removed during active migration."
	failedTaken    = "VMI's migration state was taken over by another migration job during active migration."
	// failedOutgrown is not KubeVirt's. With a limit, the guest could be killed for its memory on the target.
	failedOutgrown = "Migration failed because the guest got more CPUs or memory than its target pod was created for. Migrate it again."
	// failedVolumes is not KubeVirt's: KubeVirt would continue, with claims that the VMI does not have any more.
	failedVolumes = "Migration failed because the VMI's volumes were changed after the target pod was created"
	// failedNetworks is not KubeVirt's: the transfer would fail, because the target lacks an interface of the guest.
	failedNetworks = "Migration failed because the VMI got another interface or network after the target pod was created. Migrate it again."
	// failedUtility is not KubeVirt's, which has no advice.
	failedUtility = "Migration failed because the guest's utility volumes were not detached in time: wait for its backup or memory dump, or delete it."
	failedSource  = "source node reported migration failed"
)

// checkFailure sets Failure if the migration has failed. An assigned migration fails when the source's agent reports
// it, or when the VMI ends. Any other fails only after its target's Pod is deleted, so that no guest can be sent there.
func checkFailure(ctx context.Context, s *Scope) error {
	if m := s.state(); m != nil {
		switch {
		case m.Failed:
			s.Failure = withReason(failedSource, m.FailureReason)
		case s.ended() && !m.Completed:
			s.Failure = failedShutdown
		}
		return nil
	}
	failure, err := s.failureBeforeAssignment(ctx)
	if err != nil || failure == "" {
		return err
	}
	switch assigned, err := s.isAssigned(ctx); {
	case err != nil:
		return err
	case assigned:
		return checkFailure(ctx, s)
	}
	return s.fail(ctx, failure)
}

// isAssigned reports whether the migration is assigned to the agents. It reads the API server, as the cache may be
// stale.
func (s *Scope) isAssigned(ctx context.Context) (bool, error) {
	fresh := &v1.VirtualMachineInstance{}
	err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(s.VMI), fresh)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(s.VMI), err)
	case fresh.UID != s.VMI.UID || stateOf(fresh, s.Migration.UID) == nil:
		return false, nil
	}
	s.VMI = fresh
	return true, nil
}

// fail ends a migration that is not assigned, which the caller has checked.
func (s *Scope) fail(ctx context.Context, failure string) error {
	if err := s.removeTarget(ctx, failure); err != nil {
		return err
	}
	if err := s.removeState(ctx); err != nil {
		return err
	}
	s.Failure = failure
	return nil
}

// failureBeforeAssignment returns why a migration will never be assigned, or "" if it may still be.
func (s *Scope) failureBeforeAssignment(ctx context.Context) (string, error) {
	started := !s.Migration.IsQueued()
	switch {
	case s.ended() || s.VMI.DeletionTimestamp != nil:
		return failedShutdown, nil
	case s.deleting():
		return failedCanceled, nil
	case s.passed(v1.MigrationPreparingTarget):
		return failedTaken, nil
	case len(s.refusals()) > 0:
		return specsupport.JoinErrors(s.refusals()).Error(), nil
	case s.Target == nil && started:
		return s.findTarget(ctx)
	case s.Target != nil && !s.alive(s.Target):
		return failedPodEnded, nil
	case s.Target != nil && s.Target.DeletionTimestamp != nil:
		return failedPodGone, nil
	case s.Target != nil && s.outdated() != "":
		return s.outdated(), nil
	case s.Migration.Status.Phase == v1.MigrationPhaseUnset && isPreceded(s.Migration, s.Siblings):
		return failedBusy, nil
	case s.Target == nil:
		return s.failureInQueue(), nil
	default:
		return "", nil
	}
}

// outdated returns in what the VMI has changed since the target's Pod was created for it, as a failure, or "".
func (s *Scope) outdated() string {
	switch {
	case !sameClaims(s.VMI, s.Target):
		return failedVolumes
	case !podspec.HasNetworks(s.Target, s.VMI):
		return failedNetworks
	case s.Own != nil && resize.Outgrown(s.VMI, s.Own, s.Target):
		return failedOutgrown
	default:
		return ""
	}
}

// failureInQueue returns why a migration without a target will never have one, or "".
func (s *Scope) failureInQueue() string {
	if s.waitedForUtilityVolumes() {
		return failedUtility
	}
	return cannotMigrate(s.VMI)
}

// waitedForUtilityVolumes reports whether the guest still has utility volumes when the migration does not wait for them
// any longer.
func (s *Scope) waitedForUtilityVolumes() bool {
	blocked := conditions.IsTrue(s.Migration.Status.Conditions, v1.VirtualMachineInstanceMigrationBlockedByUtilityVolumes)
	return blocked && len(s.VMI.Spec.UtilityVolumes) > 0 && !backup.InProgress(&s.VMI.Status) &&
		!s.Now.Before(s.utilityDeadline())
}

// refusals returns the fields of the spec that are not implemented.
func (s *Scope) refusals() field.ErrorList {
	return specsupport.Refusals(specsupport.UnimplementedInMigration(field.NewPath("spec"), &s.Migration.Spec))
}

// findTarget reads the target's Pod from the API server, as the cache may be stale.
func (s *Scope) findTarget(ctx context.Context) (string, error) {
	pod, err := s.pod(ctx, s.APIReader, podspec.TargetPodName(s.VMI, s.Migration.UID))
	if s.Target = pod; err != nil || pod != nil {
		return "", err
	}
	return failedPodGone, nil
}

// isPreceded reports whether another migration of the VMI has precedence over this one.
func isPreceded(m *v1.VirtualMachineInstanceMigration, siblings []*v1.VirtualMachineInstanceMigration) bool {
	return slices.ContainsFunc(siblings, func(o *v1.VirtualMachineInstanceMigration) bool {
		return o.UID != m.UID && !o.IsFinal() && precedes(o, m)
	})
}

func cannotMigrate(vmi *v1.VirtualMachineInstance) string {
	condition := vmistatus.Migratability(&vmi.Status)
	if condition == nil || condition.Status != corev1.ConditionFalse {
		return ""
	}
	return fmt.Sprintf("Cannot migrate VMI, Reason: %s, Message: %s", condition.Reason, condition.Message)
}

func withReason(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}

// removeTarget deletes the target's Pod of a migration that is not assigned. A Pod all of whose containers have ended
// is kept for its logs. A Pod in which only the launcher has ended is deleted: if the launcher was killed early, the
// container guest-console-log would still wait for it, and the Pod would occupy its node for minutes.
func (s *Scope) removeTarget(ctx context.Context, why string) error {
	if s.Target == nil && s.Migration.Status.Phase != v1.MigrationPhaseUnset {
		pod, err := s.pod(ctx, s.APIReader, podspec.TargetPodName(s.VMI, s.Migration.UID))
		if err != nil {
			return err
		}
		s.Target = pod
	}
	if s.Target == nil || s.Target.DeletionTimestamp != nil || podstate.Terminal(s.Target) {
		return nil
	}
	// The preconditions ensure that the Pod has not been assigned since it was read.
	err := s.Client.Delete(ctx, s.Target, kit.Unchanged(s.Target))
	switch {
	case apierrors.IsNotFound(err):
	case apierrors.IsConflict(err):
		return fmt.Errorf("delete the target's Pod %s, which has changed: %w", s.Target.Name, err)
	case err != nil:
		s.event(corev1.EventTypeWarning, ReasonFailedDelete, actionDelete, "Error deleting canceled migration target pod: %v",
			err)
		return fmt.Errorf("delete the target's Pod %s: %w", s.Target.Name, err)
	default:
		s.event(corev1.EventTypeNormal, ReasonSuccessfulDelete, actionDelete, "Deleted migration target pod %s/%s: %s",
			s.Target.Namespace, s.Target.Name, why)
	}
	return nil
}
