// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vireo-project/vireo/test/auditlog"
)

func TestStepsAreReadFromALaunchersLog(t *testing.T) {
	log := "VIREO-GUEST-BOOT\n" +
		`{"ts":"2026-01-01T00:00:01.25Z","level":"info","msg":"Connected to libvirtd","defined":false}` + "\n" +
		`{"ts":"2026-01-01T00:00:02Z","level":"info","msg":"The domain is defined"}` + "\n" +
		`{"ts":"2026-01-01T00:00:03Z","level":"info","msg":"The guest runs","pid":31}` + "\n{\"half\": "
	at := func(milliseconds int) time.Time {
		return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(milliseconds) * time.Millisecond)
	}
	want := map[string]time.Time{stepConnected: at(1250), stepDefined: at(2000), stepGuestRuns: at(3000)}
	if diff := cmp.Diff(want, stepsOfLog([]byte(log))); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// auditLines are a start of VM "a" with two controller writes to its VMI, a creation, a status write by the
// kubelet, an event, a failed write, and a write in another namespace.
const auditLines = `{"stage":"ResponseComplete","verb":"create","user":{"username":"system:serviceaccount:kubevirt:c"},"objectRef":{"resource":"virtualmachineinstances","namespace":"n","name":"a"},"responseStatus":{"code":201},"stageTimestamp":"2026-01-01T00:00:01.000000Z"}
{"stage":"ResponseComplete","verb":"patch","user":{"username":"system:serviceaccount:kubevirt:c"},"objectRef":{"resource":"virtualmachineinstances","subresource":"status","namespace":"n","name":"a"},"responseStatus":{"code":200},"stageTimestamp":"2026-01-01T00:00:02.000000Z"}
{"stage":"ResponseComplete","verb":"patch","user":{"username":"system:serviceaccount:kubevirt:c"},"objectRef":{"resource":"virtualmachineinstances","namespace":"n","name":"a"},"responseStatus":{"code":200},"stageTimestamp":"2026-01-01T00:00:02.000000Z"}
{"stage":"ResponseComplete","verb":"patch","user":{"username":"system:serviceaccount:kubevirt:c"},"objectRef":{"resource":"virtualmachineinstances","namespace":"n","name":"a"},"responseStatus":{"code":409},"stageTimestamp":"2026-01-01T00:00:02.000000Z"}
{"stage":"ResponseComplete","verb":"patch","user":{"username":"system:node:n1"},"objectRef":{"resource":"pods","subresource":"status","namespace":"n","name":"virt-launcher-a-x1y2z"},"responseStatus":{"code":200},"stageTimestamp":"2026-01-01T00:00:02.000000Z"}
{"stage":"ResponseComplete","verb":"create","user":{"username":"system:serviceaccount:kubevirt:c"},"objectRef":{"resource":"events","namespace":"n","name":"a.187"},"responseStatus":{"code":201},"stageTimestamp":"2026-01-01T00:00:02.000000Z"}
{"stage":"ResponseComplete","verb":"patch","user":{"username":"system:serviceaccount:kubevirt:c"},"objectRef":{"resource":"virtualmachines","namespace":"other","name":"a"},"responseStatus":{"code":200},"stageTimestamp":"2026-01-01T00:00:02.000000Z"}
{"stage":"ResponseComplete","verb":"patch","user":{"username":"system:serviceaccount:kubevirt:c"},"objectRef":{"resource":"virtualmachines","namespace":"n","name":"a"},"responseStatus":{"code":200},"stageTimestamp":"2026-01-01T00:00:09.000000Z"}
{"stage":"ResponseComplete","verb":"create","user":{"username":"system:serviceaccount:kubevirt:c"},"objectRef":{"resource":"controllerrevisions","namespace":"n","name":"revision-start-vm-4711-1"},"responseStatus":{"code":201},"stageTimestamp":"2026-01-01T00:00:02.000000Z"}
{"stage":"ResponseComp`

func TestWritesAreCountedPerVM(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte(auditLines), 0o600); err != nil {
		t.Fatal(err)
	}
	changes, err := auditlog.Since(path, 0, "n")
	if err != nil {
		t.Fatal(err)
	}
	running := map[string]time.Time{"a": time.Date(2026, 1, 1, 0, 0, 5, 0, time.UTC)}
	if diff := cmp.Diff(writes{VMI: 2, Event: 1, Revision: 1}, perVM(changes, running, auditlog.Write.Ours)); diff != "" {
		t.Errorf("our writes (-want +got):\n%s", diff)
	}
	all := perVM(changes, running, func(auditlog.Write) bool { return true })
	if diff := cmp.Diff(writes{VMI: 2, Pod: 1, Event: 1, Revision: 1}, all); diff != "" {
		t.Errorf("all clients' writes (-want +got):\n%s", diff)
	}
}
