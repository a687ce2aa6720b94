// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pods

import (
	"strings"
	"testing"
)

// FuzzCgroup checks that a process is in a Pod only if its cgroup names the Pod, whatever other hierarchies are listed.
func FuzzCgroup(f *testing.F) {
	const pod = "0b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11"
	f.Add("0::/kubepods/burstable/pod"+pod+"/8f0c\n", pod)
	f.Add("0::/kubepods.slice/kubepods-pod0b7a6b0e_6d53_4f0b_9a41_3a1d8f1f7a11.slice/x.scope\n", pod)
	f.Add("12:pids:/node2/kubepods/pod"+pod+"/8f0c\n1:name=systemd:/x\n", pod)
	f.Add("0::/user.slice/evil-pod0b7a6b0e_6d53_4f0b_9a41_3a1d8f1f7a11.slice\n", pod)
	f.Add("::pod"+pod+"\n:", pod)
	f.Fuzz(func(t *testing.T, file, pod string) {
		if err := CheckUID(pod); err != nil {
			return
		}
		in := checkCgroup(procDir(t, file), pod) == nil
		if in && !strings.Contains(strings.ReplaceAll(file, "_", "-"), "pod"+strings.ReplaceAll(pod, "_", "-")) {
			t.Errorf("%q is taken for one of Pod %q", file, pod)
		}
		if more := checkCgroup(procDir(t, "1:cpu:/\n"+file), pod) == nil; more != in {
			t.Errorf("%q: %t, and %t with another hierarchy before it", file, in, more)
		}
	})
}
