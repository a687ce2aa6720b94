// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
)

// ReasonStateDamaged is the reason of the condition Synchronized while the persistent state of TPM or EFI cannot be used.
const ReasonStateDamaged = "PersistentStateDamaged"

// stateRetry is the delay before damaged state is read again, which a user may have replaced or removed.
const stateRetry = time.Minute

// stateChecker reads the persistent state of a guest that is about to start.
type stateChecker interface {
	// CheckState returns hypervisor.ErrStateDamaged if the guest cannot use a file of its state.
	CheckState(ctx context.Context, files hypervisor.StateFiles) error
}

// checkState returns an error if the guest's persistent state is damaged. swtpm and QEMU would fail without naming the file. Nothing is
// repaired: a TPM's state may have keys of which a backup has a copy.
func (s *scope) checkState(ctx context.Context, launcher stateChecker, definition *libvirtxml.Domain) error {
	var files hypervisor.StateFiles
	if s.VMI.Spec.HasPersistentEFI() {
		files.NVRAM = launcherpod.NVRAMStateFile(s.VMI.Name)
	}
	if s.VMI.Spec.HasPersistentTPM() {
		files.TPM = launcherpod.TPMStateDir(definition.UUID)
	}
	err := launcher.CheckState(ctx, files)
	if errors.Is(err, hypervisor.ErrStateDamaged) {
		return &outcome.Retry{Reason: ReasonStateDamaged, After: stateRetry, Err: fmt.Errorf("PersistentVolumeClaim %s: %w: restore the claim from a backup, "+
			"or stop the VirtualMachine and delete the claim to start with an empty TPM and new EFI variables", podspec.StateClaim(s.Pod), err)}
	}
	if err != nil {
		return fmt.Errorf("check the persistent state: %w", phase.FromConnection(err))
	}
	return nil
}
