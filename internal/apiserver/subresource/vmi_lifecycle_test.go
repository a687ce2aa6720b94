// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

func withProbe(handler v1.Handler) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.LivenessProbe = &v1.Probe{Handler: handler} }
}

func withoutACPI(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Features = &v1.Features{ACPI: v1.FeatureState{Enabled: ptr.To(false)}}
}

func phase(phase v1.VirtualMachineInstancePhase) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = phase }
}

// TestLifecycleVerbs sends each verb in each state that matters.
func TestLifecycleVerbs(t *testing.T) {
	paused := with(v1.VirtualMachineInstancePaused)
	const notFound = `virtualmachineinstance.kubevirt.io "none" not found`
	for _, tc := range []struct {
		verb, state string
		change      func(*v1.VirtualMachineInstance)
		body        string
		code        int
		message     string
	}{
		{"pause", "running", nil, "", 200, ""},
		{"pause", "running", nil, "{}", 200, ""},
		{"pause", "scheduled", phase(v1.Scheduled), "", 409, "VM is not running"},
		{"pause", "ended", phase(v1.Succeeded), "", 409, "VM is not running"},
		{"pause", "paused", paused, "", 409, "VMI is already paused"},
		{"pause", "probed", withProbe(v1.Handler{TCPSocket: &corev1.TCPSocketAction{}}), "", 403, "Pausing VMIs with a non-GuestAgentPing LivenessProbe is not supported"},
		{"pause", "pinged", withProbe(v1.Handler{GuestAgentPing: &v1.GuestAgentPing{}}), "", 200, ""},
		{"pause", "garbled", nil, "{", 400, "Can not unmarshal Request body to struct"},
		{"pause", "wrong dry run", nil, `{"dryRun":["Some"]}`, 400, `dryRun[0]: "Some" is not supported`},
		{"unpause", "paused", paused, "", 200, ""},
		{"unpause", "stopped by QEMU", func(vmi *v1.VirtualMachineInstance) {
			paused(vmi)
			vmi.Status.Conditions[len(vmi.Status.Conditions)-1].Reason = v1.PausedUnknownReason
		}, "", 200, ""},
		{"unpause", "running", nil, "", 409, "VMI is not paused"},
		{"unpause", "paused by its migration", func(vmi *v1.VirtualMachineInstance) {
			paused(vmi)
			vmi.Status.Conditions[len(vmi.Status.Conditions)-1].Reason = v1.PausedByMigrationMonitorReason
		}, "", 409, "VMI was paused by the migration monitor"},
		{"unpause", "ended", phase(v1.Failed), "", 409, "VMI is not running"},
		{"softreboot", "running", nil, "", 200, ""},
		{"softreboot", "paused", paused, "", 409, "VMI is paused"},
		{"softreboot", "pending", phase(v1.Pending), "", 409, "VM is not running"},
		{"softreboot", "without ACPI", withoutACPI, "", 409, "VMI neither have the agent connected nor the ACPI feature enabled"},
		{"softreboot", "without ACPI, with agent", func(vmi *v1.VirtualMachineInstance) {
			withoutACPI(vmi)
			with(v1.VirtualMachineInstanceAgentConnected)(vmi)
		}, "", 200, ""},
		{"reset", "running", nil, "", 200, ""},
		{"reset", "scheduled", phase(v1.Scheduled), "", 200, ""},
		{"reset", "pending", phase(v1.Pending), "", 400, "Failed to reset non-running VMI with phase Pending: Unable to connect to VirtualMachineInstance because phase is Pending instead of Running or Scheduled"},
		{"freeze", "running", nil, `{"unfreezeTimeout":"5m"}`, 200, ""},
		{"freeze", "ended", phase(v1.Succeeded), "", 409, "VM is not running"},
		{"freeze", "garbled", nil, `{"unfreezeTimeout":7}`, 400, "Can not unmarshal"},
		{"unfreeze", "running", nil, "", 200, ""},
		{"unfreeze", "ended", phase(v1.Succeeded), "", 409, "VMI is not running"},
	} {
		t.Run(tc.verb+" "+tc.state, func(t *testing.T) {
			vmi := running("vm")
			if tc.change != nil {
				vmi.With(tc.change)
			}
			w := newWorld(t, vmi.Obj())
			w.expect(http.MethodPut, vmiPath+"vm/"+tc.verb, tc.body, tc.code, tc.message)
			wantCalls := []string{}
			if tc.code == http.StatusOK {
				wantCalls = append(wantCalls, "PUT "+tc.verb)
			}
			for _, call := range w.expectCalls(wantCalls...) {
				if uid := call.Query.Get("uid"); uid != "uid-vm" {
					t.Errorf("the agent got a request for VMI %q", uid)
				}
			}
			w.expect(http.MethodPut, vmiPath+"none/"+tc.verb, "", 404, notFound)
		})
	}
}

func TestDryRunDoesNotCallTheAgent(t *testing.T) {
	w := newWorld(t, running("vm").Obj(), running("paused").With(with(v1.VirtualMachineInstancePaused)).Obj())
	w.expect(http.MethodPut, vmiPath+"vm/pause", `{"dryRun":["All"]}`, 200, "")
	w.expect(http.MethodPut, vmiPath+"paused/unpause", `{"dryRun":["All"]}`, 200, "")
	w.expect(http.MethodPut, vmiPath+"paused/pause", `{"dryRun":["All"]}`, 409, "VMI is already paused")
	w.expectCalls()
}

func TestUnpauseDuringASnapshot(t *testing.T) {
	vm := builder.MakeVM("vm").Namespace("ns").With(
		func(vm *v1.VirtualMachine) { vm.Status.SnapshotInProgress = ptr.To("backup") }).Obj()
	w := newWorld(t, vm, running("vm").With(with(v1.VirtualMachineInstancePaused)).Obj())
	w.expect(http.MethodPut, vmiPath+"vm/unpause", "", 409, "VM snapshot is in progress")
	w.expectCalls()
}

func TestFreezeForwardsTheTimeout(t *testing.T) {
	w := newWorld(t, running("vm").Obj())
	w.expect(http.MethodPut, vmiPath+"vm/freeze", `{"unfreezeTimeout":"90s"}`, 200, "")
	calls := w.expectCalls("PUT freeze")
	if diff := cmp.Diff(`{"unfreezeTimeout":"`+(90*time.Second).String()+`"}`, calls[0].Body); diff != "" {
		t.Error(diff)
	}
}

func TestAgentsErrorReachesTheCaller(t *testing.T) {
	w := newWorld(t, running("vm").Obj())
	for _, tc := range []struct {
		code    int32
		text    string
		want    int
		message string
	}{
		{409, "the domain is not running", 409, "the domain is not running"},
		{500, "the guest agent\nsaid \x1b[31mno", 500, "the guest agent said [31mno"},
		{501, "no", 501, "no"},
		{403, "you are not virt-api", 500, "the agent of node node1 refused virt-api with code 403. you are not virt-api"},
		{302, "", 500, "the agent of node node1 refused virt-api with code 302."},
	} {
		w.agent.SetError("pause", tc.code, tc.text)
		w.expect(http.MethodPut, vmiPath+"vm/pause", "", tc.want, tc.message)
	}
}
