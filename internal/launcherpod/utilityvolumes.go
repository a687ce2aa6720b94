// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod

import "path"

// utilityVolumesDir is where volumes that are no disks are mounted while the guest runs. KubeVirt's path.
const utilityVolumesDir = "/var/run/kubevirt/hotplug-disks"

// UtilityVolumeDir is where the file system of a utility volume is mounted.
func UtilityVolumeDir(volume string) string { return path.Join(utilityVolumesDir, volume) }
