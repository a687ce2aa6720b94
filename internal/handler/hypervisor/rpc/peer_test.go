// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"strings"
	"testing"
)

func TestCgroupInPod(t *testing.T) {
	const uid = "0b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11"
	for _, tc := range []struct {
		name, file string
		want       bool
	}{
		{"v2 with cgroupfs", "0::/kubepods/burstable/pod" + uid + "/8f0c\n", true},
		{"v2 from a cgroup namespace", "0::/../../besteffort/pod" + uid + "/8f0c\n", true},
		{"v2 with systemd", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b7a6b0e_6d53_4f0b_9a41_3a1d8f1f7a11.slice/cri-containerd-8f.scope\n", true},
		{"v1 below another root", "12:pids:/node2/kubepods/pod" + uid + "/8f0c\n1:name=systemd:/x\n", true},
		{"another Pod", "0::/kubepods/burstable/pod1b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11/8f0c\n", false},
		{"a name that only contains it", "0::/kubepods/pod" + uid + "x/8f\n", false},
		{"a slice of the Pod's own making", "0::/user.slice/evil-pod0b7a6b0e_6d53_4f0b_9a41_3a1d8f1f7a11.slice\n", false},
		{"no Pod", "0::/system.slice/ssh.service\n", false},
		{"nothing", "", false},
		{"nonsense", "pod" + uid, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := cgroupInPod(strings.NewReader(tc.file), uid)
			if err != nil || got != tc.want {
				t.Errorf("got %v (%v), want %v", got, err, tc.want)
			}
		})
	}
}
