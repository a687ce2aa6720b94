// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"testing"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

func TestBackupNeedsItsFeatureGate(t *testing.T) {
	for gate, want := range map[string]string{clusterconfig.GateIncrementalBackup: "",
		gateSnapshot: "IncrementalBackup feature gate not enabled"} {
		config := clusterconfig.Config{FeatureGates: clusterconfig.NewFeatureGates([]string{gate}, nil)}
		_, err := (&backupValidator[*v1alpha1.VirtualMachineBackup]{config: fixedConfig{config}}).ValidateCreate(t.Context(),
			&v1alpha1.VirtualMachineBackup{})
		expectRefused(t, err, want)
		_, err = (&backupValidator[*v1alpha1.VirtualMachineBackupTracker]{config: fixedConfig{config}}).ValidateCreate(
			t.Context(), &v1alpha1.VirtualMachineBackupTracker{})
		expectRefused(t, err, want)
	}
}
