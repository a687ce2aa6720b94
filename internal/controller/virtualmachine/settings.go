// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Settings is all that a VM's reconciliation reads of the cluster's configuration. A change of them enqueues all VMs.
type Settings struct {
	// LiveUpdate reports whether changes of the template are applied to a running instance where possible. Otherwise they
	// take effect at the next start.
	LiveUpdate bool
	// HotplugVolumes reports whether volumes are plugged into running guests.
	HotplugVolumes bool
	// EphemeralVolumes reports whether volumes that were plugged into the VMI of a VM only stay plugged.
	EphemeralVolumes bool
	// CPUAllocationRatio is the number of vCPUs for one CPU of the node.
	CPUAllocationRatio int
	// ReferencePolicy is whether the VM keeps referring to its instance type and preference.
	ReferencePolicy v1.InstancetypeReferencePolicy
	// Tracking is which VMs have their changed blocks tracked.
	Tracking Tracking
	// LiveMetadata are the annotations and labels of the template that are copied to a running instance.
	LiveMetadata podspec.LiveMetadata
}

// settingsOf returns the settings of a configuration.
func settingsOf(c *clusterconfig.Config) Settings {
	return Settings{
		LiveUpdate: c.RolloutStrategy == v1.VMRolloutStrategyLiveUpdate, HotplugVolumes: c.HotplugVolumes,
		EphemeralVolumes:   c.IsEnabled(clusterconfig.GateHotplug),
		CPUAllocationRatio: c.CPUAllocationRatio, ReferencePolicy: c.InstancetypeReferencePolicy,
		LiveMetadata: c.LiveMetadata,
		Tracking:     Tracking{Enabled: c.IsEnabled(clusterconfig.GateIncrementalBackup), Selected: c.ChangedBlockTracking},
	}
}
