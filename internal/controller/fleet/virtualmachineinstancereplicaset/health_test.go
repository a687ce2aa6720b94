// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset

import (
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/test/health"
)

// A replica set counts as current only when it has as many ready VMIs as the spec wants, or is paused.
func TestHealth(t *testing.T) {
	ready, starting := instance("a", v1.Running, "True", 1), instance("b", v1.Scheduling, "False GuestNotRunning", 1)
	for name, tc := range map[string]struct {
		wanted int32
		vmis   []*v1.VirtualMachineInstance
		change func(*Scope)
		want   string
	}{
		"none yet":    {1, nil, nil, health.InProgress},
		"starting":    {2, []*v1.VirtualMachineInstance{ready, starting}, nil, health.InProgress},
		"ready":       {1, []*v1.VirtualMachineInstance{ready}, nil, health.Current},
		"none wanted": {0, nil, nil, health.Current},
		"too many":    {1, []*v1.VirtualMachineInstance{ready, ready}, nil, health.InProgress},
		"paused":      {2, nil, func(s *Scope) { s.Set.Spec.Paused = true }, health.Current},
		"a VMI cannot be created": {
			1, []*v1.VirtualMachineInstance{ready},
			func(s *Scope) { s.Failure = &kit.Failure{Reason: ReasonFailedCreate, Message: "no"} }, health.InProgress,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Scope{Now: epoch, Set: &v1.VirtualMachineInstanceReplicaSet{}, Selector: labels.Everything(),
				Instances: tc.vmis}
			s.Set.Spec.Replicas = ptr.To(tc.wanted)
			if tc.change != nil {
				tc.change(s)
			}
			computeStatus(s)
			s.Set.Status = s.Status
			if got := health.Kstatus(t, s.Set); got != tc.want {
				t.Errorf("got %s, want %s: %+v", got, tc.want, s.Status)
			}
		})
	}
}
