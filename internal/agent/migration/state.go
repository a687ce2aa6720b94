// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

import (
	"context"
	"fmt"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// moveState returns what moves the guest's persistent state to the target's claim while the guest is paused, or nil if both Pods have the
// same claim. All of the state must be on the target's claim before the guest can run there (docs/adr/0033).
func moveState(transfer *Transfer, target stateKeeper) func(context.Context) error {
	if !vmistatus.MovesState(transfer.vmi.Status.MigrationState) {
		return nil
	}
	return func(ctx context.Context) error {
		var nvram []byte
		if transfer.vmi.Spec.HasPersistentEFI() {
			var err error
			if nvram, err = transfer.source.ReadNVRAM(ctx, launcherpod.NVRAMStateFile(transfer.vmi.Name)); err != nil {
				return err
			}
		}
		if err := target.KeepState(ctx, transfer.attempt(), nvram); err != nil {
			return fmt.Errorf("move the TPM's and EFI's state: %w", err)
		}
		return nil
	}
}
