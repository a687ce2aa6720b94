// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
)

func TestFailure(t *testing.T) {
	recorder := events.NewFakeRecorder(10)
	var list []v1.VirtualMachineCondition
	report := func(failure *Failure, now int64) string {
		before := append([]v1.VirtualMachineCondition(nil), list...)
		SetFailure(&list, v1.VirtualMachineFailure, failure, time.Unix(now, 0))
		RecordFailure(recorder, &v1.VirtualMachine{}, before, v1.VirtualMachineFailure, failure)
		select {
		case event := <-recorder.Events:
			return event
		default:
			return ""
		}
	}
	failure := func(message string) *Failure {
		event := FailureEvent{Reason: "Failed", Action: "Start", Note: "100% " + message}
		return &Failure{Reason: "FailedCreate", Message: message, Events: []FailureEvent{event}}
	}
	for i, step := range []struct {
		failure *Failure
		event   string
	}{
		{failure("no"), "Warning Failed 100% no"},
		{failure("no"), ""},
		{failure("never"), "Warning Failed 100% never"},
		{&Failure{Reason: "Invalid", Message: "without event"}, ""},
		{nil, ""},
		{failure("no"), "Warning Failed 100% no"},
	} {
		if got := report(step.failure, int64(i)); got != step.event {
			t.Errorf("step %d: got the event %q, want %q", i, got, step.event)
		}
		shown := conditions.Find(list, v1.VirtualMachineFailure)
		if (shown == nil) != (step.failure == nil) {
			t.Errorf("step %d: the condition is %v", i, shown)
		}
		if shown != nil && (shown.Status != corev1.ConditionTrue || shown.Message != step.failure.Message) {
			t.Errorf("step %d: the condition is %v", i, shown)
		}
	}
	if since := list[0].LastTransitionTime.Unix(); since != 5 {
		t.Errorf("the condition is true since %d", since)
	}
}
