// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

// A guest that is to return memory is transferred with what it has not returned, and its new Pod has to have room for
// it.
func TestTargetHasRoomForTheGuest(t *testing.T) {
	config := podspec.Config{LauncherImage: "launcher", DefaultArchitecture: "amd64", CPUAllocationRatio: 10,
		MemoryOvercommit: 100, AdditionalGuestMemoryOverheadRatio: 1}
	for name, c := range map[string]struct {
		desired, current, pod string
		limited               bool
		want                  string
	}{
		"it has its size":                    {"2Gi", "2Gi", "2Gi", false, "2Gi"},
		"it grows":                           {"4Gi", "2Gi", "2Gi", false, "4Gi"},
		"it has not returned anything":       {"2Gi", "8Gi", "8Gi", false, "8Gi"},
		"it has limits":                      {"2Gi", "8Gi", "8Gi", true, "8Gi"},
		"it has returned a part":             {"2Gi", "4Gi", "8Gi", false, "4Gi"},
		"it claims to have more than it may": {"2Gi", "64Gi", "4Gi", false, "4Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			of := func(guest string) *v1.VirtualMachineInstance {
				made := builder.MakeVMI("vm").UID("uid").Guest(guest)
				if c.limited {
					made = made.Request(corev1.ResourceMemory, guest).Limit(corev1.ResourceMemory, guest)
				}
				vmi := made.Obj()
				vmi.Spec.Domain.Memory.MaxGuest = ptr.To(resource.MustParse("64Gi"))
				vmi.Status.Memory = &v1.MemoryStatus{GuestCurrent: ptr.To(resource.MustParse(c.current))}
				return vmi
			}
			built := func(guest string) corev1.ResourceRequirements {
				pod, err := podspec.Build(of(guest), config)
				if err != nil {
					t.Fatal(err)
				}
				return podstate.ComputeContainer(pod).Resources
			}
			own, err := podspec.Build(of(c.pod), config)
			if err != nil {
				t.Fatal(err)
			}
			pod, err := buildTarget(of(c.desired), own, config, podspec.Target{Name: "m", UID: "m"})
			if err != nil {
				t.Fatal(err)
			}
			has, want := podstate.ComputeContainer(pod).Resources, built(c.want)
			if has.Requests.Memory().Cmp(*want.Requests.Memory()) != 0 || has.Limits.Memory().Cmp(*want.Limits.Memory()) != 0 {
				t.Errorf("the target requests %v and has the limit %v, want %v and %v",
					has.Requests.Memory(), has.Limits.Memory(), want.Requests.Memory(), want.Limits.Memory())
			}
			quantity := resource.MustParse(c.want)
			if size := resize.OfPod(pod, resize.Size{Memory: 1}); size.Memory != quantity.Value() {
				t.Errorf("the target is for %d bytes, want %d", size.Memory, quantity.Value())
			}
			if resize.Outgrown(of(c.desired), own, pod) {
				t.Error("the guest has outgrown it")
			}
		})
	}
}
