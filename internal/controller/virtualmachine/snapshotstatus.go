// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"errors"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/optional"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
)

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
