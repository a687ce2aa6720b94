// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

const instanceUID types.UID = "1234"

// newVMWithVMI returns a VM with a run strategy and, unless the phase is none, a VMI.
func newVMWithVMI(strategy v1.VirtualMachineRunStrategy, phase v1.VirtualMachineInstancePhase) vmWithVMI {
	m := vmWithVMI{vm: builder.MakeVM("vm").Strategy(strategy).Obj()}
	if phase != none {
		m.vmi = builder.MakeVMI("vm").UID(string(instanceUID)).Phase(phase).Obj()
		m.vmi.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
	}
	return m
}

// none is the phase if there is no VMI.
const none v1.VirtualMachineInstancePhase = "none"

var (
	stopRequest  = v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: ptr.To(instanceUID)}
	startRequest = v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest}
)

type decision struct {
	strategy v1.VirtualMachineRunStrategy
	phase    v1.VirtualMachineInstancePhase
	want     plan
	conflict string
}

func planOf(requests ...v1.VirtualMachineStateChangeRequest) plan { return plan{requests: requests} }

func expectDecision(t *testing.T, d decision, got plan, err error) {
	t.Helper()
	if d.conflict != "" {
		if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), d.conflict) {
			t.Errorf("%s with instance %s: got %v, want conflict %q", d.strategy, d.phase, err, d.conflict)
		}
		return
	}
	for i := range d.want.requests {
		d.want.requests[i] = d.want.requests[i].MadeUnder(d.strategy)
	}
	if diff := cmp.Diff(d.want, got, cmp.AllowUnexported(plan{})); err != nil || diff != "" {
		t.Errorf("%s with instance %s: %v %s", d.strategy, d.phase, err, diff)
	}
}

func TestDecideStart(t *testing.T) {
	for _, d := range []decision{
		{v1.RunStrategyHalted, none, plan{strategy: v1.RunStrategyAlways}, ""},
		{v1.RunStrategyHalted, v1.Running, plan{}, "VM is already running"},
		{v1.RunStrategyHalted, v1.Scheduling, plan{}, "VM is already running"},
		{v1.RunStrategyHalted, v1.Unknown, plan{strategy: v1.RunStrategyAlways}, ""},
		{v1.RunStrategyManual, none, planOf(startRequest), ""},
		{v1.RunStrategyManual, v1.Succeeded, planOf(stopRequest, startRequest), ""},
		{v1.RunStrategyManual, v1.Failed, planOf(stopRequest, startRequest), ""},
		{v1.RunStrategyRerunOnFailure, none, planOf(startRequest), ""},
		{v1.RunStrategyRerunOnFailure, v1.Succeeded, planOf(stopRequest, startRequest), ""},
		{v1.RunStrategyRerunOnFailure, v1.Failed, plan{}, "RerunOnFailure does not support starting VM from failed state"},
		{v1.RunStrategyAlways, none, plan{}, "Always does not support manual start requests"},
		{v1.RunStrategyOnce, v1.Succeeded, plan{}, "Once does not support manual start requests"},
	} {
		got, err := decideStart(newVMWithVMI(d.strategy, d.phase), false)
		expectDecision(t, d, got, err)
	}
}

func TestDecideStartPaused(t *testing.T) {
	paused := v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest, Data: map[string]string{"paused": "true"}}
	for _, d := range []decision{
		{v1.RunStrategyHalted, none, planOf(paused), ""},
		{v1.RunStrategyManual, none, planOf(paused), ""},
	} {
		got, err := decideStart(newVMWithVMI(d.strategy, d.phase), true)
		expectDecision(t, d, got, err)
	}
	m := newVMWithVMI(v1.RunStrategyHalted, none)
	m.vm.Spec.Template.Spec.StartStrategy = ptr.To(v1.StartStrategyPaused)
	got, err := decideStart(m, true)
	expectDecision(t, decision{want: plan{strategy: v1.RunStrategyAlways}}, got, err)
}

func TestDecideStop(t *testing.T) {
	for _, d := range []decision{
		{v1.RunStrategyAlways, v1.Running, plan{strategy: v1.RunStrategyHalted}, ""},
		{v1.RunStrategyAlways, none, plan{strategy: v1.RunStrategyHalted}, ""},
		{v1.RunStrategyOnce, v1.Running, plan{strategy: v1.RunStrategyHalted}, ""},
		{v1.RunStrategyManual, v1.Running, planOf(stopRequest), ""},
		{v1.RunStrategyManual, none, plan{}, "VM is not running"},
		{v1.RunStrategyRerunOnFailure, v1.Failed, plan{}, "VM is not running"},
		{v1.RunStrategyHalted, none, plan{}, "VM is not running"},
		{v1.RunStrategyHalted, v1.Running, plan{}, "Halted only supports manual stop requests with a shorter graceperiod"},
	} {
		got, err := decideStop(newVMWithVMI(d.strategy, d.phase), nil)
		expectDecision(t, d, got, err)
	}
}

func TestDecideStopWithGrace(t *testing.T) {
	for _, tc := range []struct {
		grace int64
		decision
	}{
		{10, decision{v1.RunStrategyHalted, v1.Running, plan{requests: []v1.VirtualMachineStateChangeRequest{stopRequest}, grace: ptr.To[int64](10)}, ""}},
		{30, decision{v1.RunStrategyHalted, v1.Running, plan{}, "shorter graceperiod"}},
		{0, decision{v1.RunStrategyAlways, v1.Running, plan{strategy: v1.RunStrategyHalted, grace: ptr.To[int64](0)}, ""}},
	} {
		got, err := decideStop(newVMWithVMI(tc.strategy, tc.phase), &tc.grace)
		expectDecision(t, tc.decision, got, err)
	}
}

func TestDecideRestart(t *testing.T) {
	for _, d := range []decision{
		{v1.RunStrategyAlways, v1.Running, planOf(stopRequest, startRequest), ""},
		{v1.RunStrategyManual, v1.Running, planOf(stopRequest, startRequest), ""},
		{v1.RunStrategyAlways, none, plan{}, "VM is not running: Halted"},
		{v1.RunStrategyHalted, v1.Running, plan{}, "RunStategy Halted does not support manual restart requests"},
		{v1.RunStrategyOnce, v1.Running, plan{}, "RunStategy Once does not support manual restart requests"},
	} {
		got, err := decideRestart(newVMWithVMI(d.strategy, d.phase), false)
		expectDecision(t, d, got, err)
	}
	got, err := decideRestart(newVMWithVMI(v1.RunStrategyAlways, v1.Running), true)
	expectDecision(t, decision{strategy: v1.RunStrategyAlways,
		want: plan{requests: planOf(stopRequest, startRequest).requests, grace: ptr.To[int64](1)}}, got, err)
}

func TestOnlyAStopReplacesRequests(t *testing.T) {
	m := newVMWithVMI(v1.RunStrategyManual, v1.Running)
	m.vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{startRequest}
	got, err := decideStop(m, nil)
	expectDecision(t, decision{strategy: v1.RunStrategyManual, want: planOf(stopRequest)}, got, err)
	got, err = decideRestart(m, false)
	expectDecision(t, decision{conflict: "unable to complete request: stop/start already underway"}, got, err)
}

func TestStopOfADeletedVMIIsNotUnderway(t *testing.T) {
	m := newVMWithVMI(v1.RunStrategyRerunOnFailure, none)
	m.vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{stopRequest}
	got, err := decideStart(m, false)
	expectDecision(t, decision{strategy: v1.RunStrategyRerunOnFailure, want: planOf(startRequest)}, got, err)

	m.vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{stopRequest, startRequest}
	got, err = decideStart(m, false)
	expectDecision(t, decision{conflict: "unable to complete request: stop/start already underway"}, got, err)

	m = newVMWithVMI(v1.RunStrategyRerunOnFailure, v1.Succeeded)
	m.vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{stopRequest}
	got, err = decideStart(m, false)
	expectDecision(t, decision{conflict: "unable to complete request: stop/start already underway"}, got, err)
}

func TestAStopCancelsAStart(t *testing.T) {
	for _, d := range []decision{
		{v1.RunStrategyAlways, none, plan{strategy: v1.RunStrategyHalted}, ""},
		{v1.RunStrategyHalted, none, plan{}, ""},
		{v1.RunStrategyManual, none, plan{}, ""},
		{v1.RunStrategyRerunOnFailure, none, plan{}, ""},
		// Otherwise the VM would be started again, because its VMI failed.
		{v1.RunStrategyRerunOnFailure, v1.Failed, planOf(stopRequest), ""},
	} {
		m := newVMWithVMI(d.strategy, d.phase)
		m.vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{startRequest.MadeUnder(d.strategy)}
		got, err := decideStop(m, nil)
		expectDecision(t, d, got, err)
	}
}

func TestRequestsUnderAnotherStrategyAreNotUnderway(t *testing.T) {
	m := newVMWithVMI(v1.RunStrategyManual, none)
	m.vm.Status.StateChangeRequests = []v1.VirtualMachineStateChangeRequest{startRequest.MadeUnder(v1.RunStrategyAlways)}
	got, err := decideStart(m, false)
	expectDecision(t, decision{strategy: v1.RunStrategyManual, want: planOf(startRequest)}, got, err)
	got, err = decideStop(m, nil)
	expectDecision(t, decision{conflict: "VM is not running"}, got, err)
}

func TestManualRecoveryComesFirst(t *testing.T) {
	broken := func(m vmWithVMI, kind string) vmWithVMI {
		m.vm.Status.Conditions = []v1.VirtualMachineCondition{{Type: v1.VirtualMachineConditionType(kind),
			Status: corev1.ConditionTrue}}
		return m
	}
	got, err := decideStart(broken(newVMWithVMI(v1.RunStrategyHalted, none), "ManualRecoveryRequired"), false)
	expectDecision(t, decision{conflict: "VM recovery required: Volume migration failed"}, got, err)
	got, err = decideRestart(broken(newVMWithVMI(v1.RunStrategyAlways, v1.Running), "VolumesChange"), false)
	expectDecision(t, decision{conflict: "VM recovery required: Volume migration failed"}, got, err)
}
