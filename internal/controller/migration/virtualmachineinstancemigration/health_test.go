// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/health"
)

// A migration counts as current only when it has succeeded, and as failed when it has failed.
func TestHealth(t *testing.T) {
	started := metav1.NewTime(time.Unix(1, 0))
	for name, tc := range map[string]struct {
		state  *v1.VirtualMachineInstanceMigrationState
		target *corev1.Pod
		fail   string
		want   string
	}{
		"pending":    {nil, nil, "", health.InProgress},
		"scheduling": {nil, &corev1.Pod{}, "", health.InProgress},
		"running":    {&v1.VirtualMachineInstanceMigrationState{StartTimestamp: &started}, &corev1.Pod{}, "", health.InProgress},
		"succeeded":  {&v1.VirtualMachineInstanceMigrationState{StartTimestamp: &started, Completed: true}, &corev1.Pod{}, "", health.Current},
		"failed":     {&v1.VirtualMachineInstanceMigrationState{StartTimestamp: &started, Failed: true}, nil, "no", health.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "uid"}}
			s := &Scope{Now: time.Unix(2, 0), Migration: m, VMI: builder.MakeVMI("vm").Obj(), Target: tc.target}
			computeStatus(s, &m.Status) // once it was pending
			if tc.state != nil {
				tc.state.MigrationUID = m.UID
				s.VMI.Status.MigrationState = tc.state
			}
			s.Failure = tc.fail
			computeStatus(s, &m.Status)
			if got := health.Kstatus(t, m); got != tc.want {
				t.Errorf("got %s, want %s: %+v", got, tc.want, m.Status)
			}
		})
	}
}
