// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/backup"
)

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

// vmsOfNamespace returns the VMs that a namespace's labels may select.
func (r *Reconciler) vmsOfNamespace(ctx context.Context, namespace client.Object) []ctrl.Request {
	if config := r.Config.Current(); config.ChangedBlockTracking.Namespaces == nil {
		return nil
	}
	return kit.Requests(ctx, r.Client, &v1.VirtualMachineList{}, client.InNamespace(namespace.GetName()))
}
