// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import "github.com/vireo-project/vireo/internal/podspec"

// Pods returns the part of the configuration that launcher Pods depend on. KubeVirt's log levels start at 2, the launcher's at 0.
func (c Config) Pods() podspec.Config {
	return podspec.Config{
		LauncherImage:                      c.Images.Launcher,
		ImagePullPolicy:                    c.LauncherPullPolicy,
		Seccomp:                            c.LauncherSeccomp,
		RuntimeClass:                       c.DefaultRuntimeClass,
		Verbosity:                          c.Verbosity.Launcher - min(c.Verbosity.Launcher, DefaultVerbosity),
		UseEmulation:                       c.UseEmulation,
		DefaultArchitecture:                c.DefaultArchitecture,
		CPUAllocationRatio:                 c.CPUAllocationRatio,
		CPURequest:                         c.CPURequest,
		MemoryOvercommit:                   c.MemoryOvercommit,
		AdditionalGuestMemoryOverheadRatio: c.AdditionalGuestMemoryOverheadRatio,
		HotplugVolumes:                     c.HotplugVolumes,
		HotplugResources:                   c.HotplugResources,
		ImageReserveBytes:                  c.MinimumReservePVCBytes,
		ImageTolerateLessPercent:           c.PVCTolerateLessSpaceUpToPercent,
		ConsoleLogResources:                c.ConsoleLogResources,
		RestartsContainers:                 c.RestartsContainers,
		SkipBackupHooks:                    c.SkipBackupHooks,
		Live:                               c.LiveMetadata,
		NodeSelectors:                      c.NodeSelectors,
		MigrationNetwork:                   c.MigrationNetwork,
	}
}
