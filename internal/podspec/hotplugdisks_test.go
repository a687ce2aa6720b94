// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
)

func TestDirectoryForHotpluggedDisks(t *testing.T) {
	for _, disabled := range []bool{false, true} {
		vmi := makeVMI().Obj()
		vmi.Spec.Domain.Devices.DisableHotplug = disabled
		pod, err := podspec.Build(vmi, config())
		if err != nil {
			t.Fatal(err)
		}
		volume := slices.ContainsFunc(pod.Spec.Volumes,
			func(v corev1.Volume) bool { return v.Name == launcherpod.HotplugDisksVolume && v.EmptyDir != nil })
		mount := slices.ContainsFunc(pod.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.Name == launcherpod.HotplugDisksVolume && m.MountPath == launcherpod.HotplugDisksDir && !m.ReadOnly
		})
		if volume == disabled || mount == disabled {
			t.Errorf("disableHotplug %v: volume %v, mount %v", disabled, volume, mount)
		}
	}
}
