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
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/faults"
	"github.com/vireo-project/vireo/internal/fieldsupport"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// What events say of a failure. KubeVirt's words, which people search for.
const (
	failedBusy     = "VMI is not eligible for migration because another migration job is in progress."
	failedShutdown = "Migration failed vmi shutdown during migration."
	failedCanceled = "Migration failed due to being canceled"
	failedPodEnded = "Migration failed because target pod shutdown during migration"
	failedPodGone  = "Migration target pod was removed during active migration."
	failedTaken    = "VMI's migration state was taken over by another migration job during active migration."
	// failedVolumes is ours: KubeVirt would go on, to claims that the VMI does not name any more.
	failedVolumes = "Migration failed because the VMI's volumes were changed after the target pod was created"
	failedSource  = "source node reported migration failed"
)

// judge finds out whether the migration has failed. One that the agents have fails when they say so, or with the VMI. Of one that
// they do not have, nothing may be left that a guest could still come to.
func judge(ctx context.Context, s *Scope) error {
	if m := s.state(); m != nil {
		switch {
		case m.Failed:
			s.Failure = withReason(failedSource, m.FailureReason)
		case s.ended() && !m.Completed:
			s.Failure = failedShutdown
		}
		return nil
	}
	failure, err := s.failureBefore(ctx)
	if err != nil || failure == "" {
		return err
	}
	switch theirs, err := s.handedOver(ctx); {
	case err != nil:
		return err
	case theirs:
		return judge(ctx, s)
	}
	return s.giveUp(ctx, failure)
}

// handedOver says that the agents have the migration though the cache may not show it yet: the API server is asked.
func (s *Scope) handedOver(ctx context.Context) (bool, error) {
	fresh := &v1.VirtualMachineInstance{}
	err := s.Live.Get(ctx, client.ObjectKeyFromObject(s.VMI), fresh)
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

// giveUp ends a migration that the agents do not have, which was looked at before.
func (s *Scope) giveUp(ctx context.Context, failure string) error {
	if err := s.removeTarget(ctx, failure); err != nil {
		return err
	}
	if err := s.removeState(ctx); err != nil {
		return err
	}
	s.Failure = failure
	return nil
}

// failureBefore is why a migration that the agents do not have will never be theirs, empty if it may be.
func (s *Scope) failureBefore(ctx context.Context) (string, error) {
	begun := !s.Migration.IsQueued()
	switch {
	case s.ended() || s.VMI.DeletionTimestamp != nil:
		return failedShutdown, nil
	case s.deleting():
		return failedCanceled, nil
	case s.passed(v1.MigrationPreparingTarget):
		return failedTaken, nil
	case len(s.refusals()) > 0:
		return faults.Join(s.refusals()).Error(), nil
	case s.Target == nil && begun:
		return s.lost(ctx)
	case s.Target != nil && !s.alive(s.Target):
		return failedPodEnded, nil
	case s.Target != nil && s.Target.DeletionTimestamp != nil:
		return failedPodGone, nil
	case s.Target != nil && !sameClaims(s.VMI, s.Target):
		return failedVolumes, nil
	case s.Migration.Status.Phase == v1.MigrationPhaseUnset && preceded(s.Migration, s.Siblings):
		return failedBusy, nil
	case s.Target == nil:
		return cannotMigrate(s.VMI), nil
	default:
		return "", nil
	}
}

// refusals are the fields of the spec that nothing implements yet.
func (s *Scope) refusals() field.ErrorList {
	return fieldsupport.Refusals(fieldsupport.InMigration(field.NewPath("spec"), &s.Migration.Spec))
}

// lost finds the target's Pod in the API server, if the cache is only behind.
func (s *Scope) lost(ctx context.Context) (string, error) {
	pod, err := s.pod(ctx, s.Live, podspec.TargetPodName(s.VMI, s.Migration.UID))
	if s.Target = pod; err != nil || pod != nil {
		return "", err
	}
	return failedPodGone, nil
}

// preceded says that another migration of the VMI counts, and not this one.
func preceded(m *v1.VirtualMachineInstanceMigration, siblings []*v1.VirtualMachineInstanceMigration) bool {
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

// removeTarget deletes the Pod of a migration that no agent knows of.
func (s *Scope) removeTarget(ctx context.Context, why string) error {
	if s.Target == nil && s.Migration.Status.Phase != v1.MigrationPhaseUnset {
		pod, err := s.pod(ctx, s.Live, podspec.TargetPodName(s.VMI, s.Migration.UID))
		if err != nil {
			return err
		}
		s.Target = pod
	}
	if s.Target == nil || s.Target.DeletionTimestamp != nil || !s.alive(s.Target) {
		return nil
	}
	// As it was when that was decided: no guest is on its way to a Pod that has not changed since.
	err := s.Client.Delete(ctx, s.Target, client.Preconditions{UID: ptr.To(s.Target.UID), ResourceVersion: ptr.To(s.Target.ResourceVersion)})
	switch {
	case apierrors.IsNotFound(err):
	case apierrors.IsConflict(err):
		return fmt.Errorf("delete the target's Pod %s, which has changed: %w", s.Target.Name, err)
	case err != nil:
		s.event(corev1.EventTypeWarning, ReasonFailedDelete, actionDelete, "Error deleting canceled migration target pod: %v", err)
		return fmt.Errorf("delete the target's Pod %s: %w", s.Target.Name, err)
	default:
		s.event(corev1.EventTypeNormal, ReasonSuccessfulDelete, actionDelete, "Deleted migration target pod %s/%s: %s",
			s.Target.Namespace, s.Target.Name, why)
	}
	return nil
}
