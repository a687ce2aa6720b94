// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/test/health"
)

// A pool counts as current only when its VMs follow the template and are ready, unless users have stopped them, or when
// it is paused.
func TestHealth(t *testing.T) {
	ready := func(m *member) {
		conditions.Set(&m.vm.Status.Conditions,
			v1.VirtualMachineCondition{Type: v1.VirtualMachineReady, Status: corev1.ConditionTrue})
	}
	made := func(ordinal int, changes ...memberChange) *member {
		return newMember(newSpec(0), ordinal, changes...)
	}
	for name, tc := range map[string]struct {
		wanted  int32
		members []*member
		change  func(*Scope)
		want    string
	}{
		"none yet":             {1, nil, nil, health.InProgress},
		"one starts":           {2, []*member{made(0, ready), made(1, notReady)}, nil, health.InProgress},
		"ready":                {2, []*member{made(0, ready), made(1, ready)}, nil, health.Current},
		"one is stopped":       {2, []*member{made(0, ready), made(1, halted)}, nil, health.Current},
		"one is being deleted": {1, []*member{made(0, ready), made(1, ready, deleted)}, nil, health.InProgress},
		// A strategy keeps it.
		"one too many":     {1, []*member{made(0, ready), made(1, ready)}, nil, health.Current},
		"being updated":    {1, []*member{made(0, ready)}, func(s *Scope) { s.pending = true }, health.InProgress},
		"paused":           {2, nil, func(s *Scope) { s.Pool.Spec.Paused = true }, health.Current},
		"an update failed": {1, []*member{made(0, ready)}, func(s *Scope) { s.Failure = &kit.Failure{Message: "no"} }, health.InProgress},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Scope{Now: now, Pool: &poolv1.VirtualMachinePool{}, Selector: labels.Everything(), members: tc.members}
			s.Pool.Spec.Replicas = ptr.To(tc.wanted)
			if tc.change != nil {
				tc.change(s)
			}
			computeStatus(s)
			s.Pool.Status = s.Status
			if got := health.Kstatus(t, s.Pool); got != tc.want {
				t.Errorf("got %s, want %s: %+v", got, tc.want, s.Status)
			}
		})
	}
}
