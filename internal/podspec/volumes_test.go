// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
)

func TestLauncherKnowsTheNameOfTheState(t *testing.T) {
	cfg := config()
	cfg.StateClaim = "persistent-state-for-vm-0a1b2"
	for name, persistent := range map[string]bool{"with state": true, "without": false} {
		pod, err := podspec.Build(makeVMI().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Firmware = &v1.Firmware{UUID: "5d307ca9-b3ef-428c-8861-06e72d69f223"}
			vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Persistent: ptr.To(persistent)}
		}).Obj(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		want := corev1.EnvVar{Name: launcherpod.FirmwareUUIDEnv, Value: "5d307ca9-b3ef-428c-8861-06e72d69f223"}
		if got := slices.Contains(pod.Spec.Containers[0].Env, want); got != persistent {
			t.Errorf("%s: the environment is %v", name, pod.Spec.Containers[0].Env)
		}
		if got := podspec.StateClaim(pod); (got == cfg.StateClaim) != persistent {
			t.Errorf("%s: the claim is %q", name, got)
		}
	}
}
