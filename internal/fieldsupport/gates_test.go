// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package fieldsupport

import (
	"slices"
	"testing"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// implementedGates turn on what something makes work, or what always is.
var implementedGates = []string{
	"AlignCPUs", "CPUManager", "ExternalNetResourceInjection", "HostDisk", "ImageVolume", "MigrationStallDetection", "NodeRestriction", "ObjectGraph", "PodSecondaryInterfaceNamingUpgrade",
	"PortRangesSpec", "RebootPolicy", "VSOCK", "VmiMemoryOverheadReport",
}

// TestEveryGateIsDecidedOn keeps a gate from being passed over in silence.
func TestEveryGateIsDecidedOn(t *testing.T) {
	for gate, stage := range clusterconfig.Gates() {
		if stage != clusterconfig.StageAlpha && stage != clusterconfig.StageBeta {
			continue
		}
		_, not := Gates[gate]
		if implemented := slices.Contains(implementedGates, gate); implemented == not {
			t.Errorf("gate %s: implemented %t, on the list of what is not %t", gate, implemented, not)
		}
	}
	for gate := range Gates {
		if _, known := clusterconfig.StageOf(gate); !known {
			t.Errorf("KubeVirt has no gate %s", gate)
		}
	}
}
