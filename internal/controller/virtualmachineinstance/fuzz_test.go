// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"testing"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// maxEnd is the largest length of reason and message together, in bytes.
const maxEnd = 8 << 10

// FuzzEnd checks termination messages of hostile launchers: the exit code decides the phase, and the texts are bounded
// and printable.
func FuzzEnd(f *testing.F) {
	f.Fuzz(func(t *testing.T, exit int32, reason, message string) {
		pod := &corev1.Pod{}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: launcherpod.ComputeContainer}}
		pod.Status.ContainerStatuses[0].State.Terminated = &corev1.ContainerStateTerminated{ExitCode: exit, Reason: reason,
			Message: message}
		end := finalStateOf(pod)
		if want := map[bool]v1.VirtualMachineInstancePhase{true: v1.Succeeded,
			false: v1.Failed}[exit == 0]; end.phase != want {
			t.Errorf("the exit code %d is %s", exit, end.phase)
		}
		if len(end.reason)+len(end.message) > maxEnd {
			t.Errorf("%d bytes", len(end.reason)+len(end.message))
		}
		for _, r := range end.reason + end.message {
			if !unicode.IsPrint(r) {
				t.Fatalf("%U is in %.200q", r, end.message)
			}
		}
	})
}
