// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

const (
	vmPath  = "/namespaces/{namespace}/virtualmachines/{name}/"
	vmiPath = "/namespaces/{namespace}/virtualmachineinstances/{name}/"
)

func TestVerbs(t *testing.T) {
	const vms, vmis = subresources.VirtualMachines, subresources.VirtualMachineInstances
	tests := []struct {
		command        string
		resource, verb string
		namespace      string
		body           string
		out            string
	}{
		{"start demo", vms, "start", "", `{}`, "VM demo was scheduled to start\n"},
		{"start demo --paused", vms, "start", "", `{"paused":true}`, "VM demo was scheduled to start\n"},
		{"start vm/demo -n other", vms, "start", "other", `{}`, "VM demo was scheduled to start\n"},
		{"start demo --dry-run", vms, "start", "", `{"dryRun":["All"]}`, "Dry Run execution\nVM demo was scheduled to start\n"},
		{"stop demo", vms, "stop", "", `{}`, "VM demo was scheduled to stop\n"},
		{"stop demo --force --grace-period=0", vms, "stop", "", `{"gracePeriod":0}`, "VM demo was scheduled to stop\n"},
		{"restart demo", vms, "restart", "", `{}`, "VM demo was scheduled to restart\n"},
		{"restart demo --force --grace-period 0", vms, "restart", "", `{"gracePeriodSeconds":0}`, "VM demo was scheduled to restart\n"},
		{"pause vm demo", vmis, "pause", "", `{}`, "VMI demo was scheduled to pause\n"},
		{"pause vmi demo --dry-run", vmis, "pause", "", `{"dryRun":["All"]}`, "Dry Run execution\nVMI demo was scheduled to pause\n"},
		{"unpause virtualmachines demo", vmis, "unpause", "", `{}`, "VMI demo was scheduled to unpause\n"},
		{"unpause demo", vmis, "unpause", "", `{}`, "VMI demo was scheduled to unpause\n"},
		{"soft-reboot demo", vmis, "softreboot", "", `{}`, "VMI demo was scheduled to soft-reboot\n"},
		{"reset demo", vmis, "reset", "", `{}`, "VMI demo was scheduled to reset\n"},
		{"migrate demo --addedNodeSelector=a=b,c=d", vms, "migrate", "", `{"addedNodeSelector":{"a":"b","c":"d"}}`, "VM demo was scheduled to migrate\n"},
		{"evacuate-cancel vmi demo", vmis, "evacuate/cancel", "", `{"evacuationNodeName":""}`, "VMI tenant/demo was canceled evacuation\n"},
	}
	for _, tt := range tests {
		t.Run(tt.command, func(t *testing.T) {
			s := virtctltest.NewServer(t)
			s.Record(http.MethodPut, "/namespaces/{namespace}/"+tt.resource+"/{name}/"+tt.verb, http.StatusAccepted, "")
			got := s.Run(virtctl.Execute, strings.Fields(tt.command)...)
			if diff := cmp.Diff(virtctltest.Result{Out: tt.out}, got); diff != "" {
				t.Fatalf("result (-want +got):\n%s", diff)
			}
			namespace := tt.namespace
			if namespace == "" {
				namespace = virtctltest.Namespace
			}
			want := []virtctltest.Request{{
				Method: http.MethodPut, Body: []byte(tt.body),
				Path: "/apis/subresources.kubevirt.io/v1/namespaces/" + namespace + "/" + tt.resource + "/demo/" + tt.verb,
			}}
			if diff := cmp.Diff(want, s.Requests()); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVerbsRefused(t *testing.T) {
	status := func(code int, reason, message, details string) string {
		return `{"kind":"Status","apiVersion":"v1","status":"Failure","code":` + strconv.Itoa(code) + `,"reason":"` + reason + `","message":"` + message + `"` + details + `}`
	}
	const found = `,"details":{"name":"demo","kind":"virtualmachine","group":"kubevirt.io"}`
	tests := map[string]struct {
		arguments string
		code      int
		response  string
		want      []string
	}{
		"conflict": {"start demo", 409, status(409, "Conflict", "Operation cannot be fulfilled on virtualmachine.kubevirt.io \\\"demo\\\": VM is already running", found),
			[]string{"error starting VirtualMachine", "VM is already running"}},
		"no such VM": {"stop demo", 404, status(404, "NotFound", "virtualmachine.kubevirt.io \\\"demo\\\" not found", found),
			[]string{`"demo" not found`}},
		"no API": {"stop demo", 404, "404 page not found\n", []string{"does not serve subresources.kubevirt.io", "kubectl get apiservice"}},
		"no right": {"stop demo", 403, status(403, "Forbidden", "virtualmachines.subresources.kubevirt.io \\\"demo\\\" is forbidden", found),
			[]string{"is forbidden", "kubevirt.io:edit"}},
		"virt-api is away": {"restart demo", 503, "service unavailable", []string{"virt-api does not respond", "kubectl get pods"}},
		"terminal escapes": {"start demo", 409, status(409, "Conflict", `a\u001b[2Jb\u009bc`, found), []string{"a[2Jbc"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := virtctltest.NewServer(t)
			verb := strings.Fields(tt.arguments)[0]
			s.Record(http.MethodPut, vmPath+verb, tt.code, tt.response)
			got := s.Run(virtctl.Execute, strings.Fields(tt.arguments)...)
			expectFailure(t, got, tt.want...)
			if strings.ContainsAny(got.ErrOut, "\x1b\u009b") {
				t.Errorf("the error contains control characters: %q", got.ErrOut)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	s := virtctltest.NewServer(t)
	tests := map[string][]string{
		"start":                          {"the name of the VM is missing", "virtctl start --help"},
		"start a b":                      {"one VM at a time"},
		"start node/a":                   {`unsupported resource type "node"`},
		"start vm/a/b":                   {"is not a name"},
		"stop demo --force":              {"must both use --force=true and set --grace-period"},
		"restart demo --grace-period=3":  {"must both use --force=true and set --grace-period"},
		"pause pod demo":                 {`unsupported resource type "pod"`},
		"star demo":                      {`unknown command "star"`, "start"},
		"start demo --kubeconfig=/x/y/z": {"/x/y/z"},
	}
	for command, want := range tests {
		t.Run(command, func(t *testing.T) {
			expectFailure(t, s.Run(virtctl.Execute, strings.Fields(command)...), want...)
		})
	}
	if got := s.Requests(); len(got) != 0 {
		t.Errorf("wrong arguments were sent to the server: %v", got)
	}
}

func TestMigrateCancel(t *testing.T) {
	migration := func(name, vmi string,
		phase v1.VirtualMachineInstanceMigrationPhase) *v1.VirtualMachineInstanceMigration {
		m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: name}}
		m.Spec.VMIName, m.Status.Phase = vmi, phase
		return m
	}
	s := virtctltest.NewServer(t)
	s.Add(migration("over", "demo", v1.MigrationSucceeded), migration("others", "other", v1.MigrationRunning),
		migration("going", "demo", v1.MigrationRunning))
	got := s.Run(virtctl.Execute, "migrate-cancel", "demo")
	if diff := cmp.Diff(virtctltest.Result{Out: "VM demo was scheduled to migrate-cancel\n"}, got); diff != "" {
		t.Fatalf("result (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"DELETE virtualmachineinstancemigrations/tenant/going"}, s.Writes()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	expectFailure(t, s.Run(virtctl.Execute, "migrate-cancel", "demo"), "found no migration to cancel for demo")
}

// expectFailure expects exit code 1, no output, and an error that contains all of these.
func expectFailure(t *testing.T, got virtctltest.Result, says ...string) {
	t.Helper()
	if got.Code != 1 || got.Out != "" {
		t.Errorf("exit code %d with output %q, want 1 and none", got.Code, got.Out)
	}
	for _, text := range says {
		if !strings.Contains(got.ErrOut, text) {
			t.Errorf("the error does not contain %q:\n%s", text, got.ErrOut)
		}
	}
}
