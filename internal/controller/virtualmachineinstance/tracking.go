// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// decideTracking decides whether the changed blocks of a guest that is assigned to its agent are tracked. It does not
// change after that: the agent has then laid overlays over the disks, or has not. docs/adr/0090
func (s *scope) decideTracking(ctx context.Context) error {
	owner := vmistatus.VMOf(s.vmi)
	if !s.config.IsEnabled(clusterconfig.GateIncrementalBackup) || owner == nil {
		return nil
	}
	vm, err := kit.Read(ctx, client.ObjectKeyFromObject(s.vmi), &v1.VirtualMachine{}, s.client)
	if err != nil || vm == nil || vm.UID != owner.UID {
		return err
	}
	selected, err := kit.SelectsForTracking(ctx, s.client, s.config.ChangedBlockTracking, vm)
	switch {
	case err != nil:
		return err
	case selected:
		s.tracking = v1.ChangedBlockTrackingInitializing
	case vm.Status.ChangedBlockTracking != nil:
		s.tracking = v1.ChangedBlockTrackingDisabled // It was selected before.
	}
	return nil
}

// setTracking reports whether the changed blocks of all disks that can be tracked are.
func setTracking(o *observed, status *v1.VirtualMachineInstanceStatus) {
	if !backup.WantsTracking(status) {
		return
	}
	want := backup.Disks(&o.vmi.Spec)
	state := v1.ChangedBlockTrackingInitializing
	if len(want) > 0 && !slices.ContainsFunc(want,
		func(name string) bool { return !slices.Contains(status.TrackedVolumes, name) }) {
		state = v1.ChangedBlockTrackingEnabled
	}
	changed := *status.ChangedBlockTracking
	changed.State = state
	status.ChangedBlockTracking = &changed
}
