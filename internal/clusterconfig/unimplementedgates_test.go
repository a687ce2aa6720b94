// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"slices"
	"testing"

	"github.com/vireo-project/vireo/internal/specsupport"
)

// implementedGates are gates whose features work, or are always on.
var implementedGates = []string{
	"AlignCPUs", "CPUManager", "DeclarativeHotplugVolumes", "ExternalNetResourceInjection", "HostDisk", "ImageVolume", "IncrementalBackup", "MigrationStallDetection", "NodeRestriction", "OCIExport", "ObjectGraph", "PodSecondaryInterfaceNamingUpgrade",
	"PortRangesSpec", "RebootPolicy", "Snapshot", "UtilityVolumes", "VSOCK", "VmiMemoryOverheadReport",
}

// Each alpha or beta gate is either implemented or in specsupport.UnimplementedGates.
func TestEveryGateIsListed(t *testing.T) {
	for gate, stage := range gates {
		if stage != StageAlpha && stage != StageBeta {
			continue
		}
		_, not := specsupport.UnimplementedGates[gate]
		if implemented := slices.Contains(implementedGates, gate); implemented == not {
			t.Errorf("gate %s: in implementedGates: %t, in UnimplementedGates: %t", gate, implemented, not)
		}
	}
	for gate := range specsupport.UnimplementedGates {
		if _, known := StageOf(gate); !known {
			t.Errorf("KubeVirt has no gate %s", gate)
		}
	}
}
