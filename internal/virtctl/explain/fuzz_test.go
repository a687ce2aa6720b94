// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package explain

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

// maxReport is more than a screen of text, in bytes.
const maxReport = 32 << 10

// FuzzExplain checks that the report has a limited length and no control characters, whatever statuses, events and
// messages contain.
func FuzzExplain(f *testing.F) {
	f.Add([]byte(`{"phase":"Running","nodeName":"n1","guestOSInfo":{"prettyName":"\u001b[31mred"}}`), []byte(`{"phase":"Failed"}`), "\x1b]0;title\x07")
	f.Add([]byte(`{"phase":"Scheduled","conditions":[{"type":"Synchronized","status":"False","reason":"x","message":"\u202egnp"}]}`),
		[]byte(`{"conditions":[{"type":"PodScheduled","status":"False","message":"0/3 nodes are available: 3 Insufficient cpu."}]}`), "")
	f.Add([]byte(`{"phase":"Running","migrationState":{"migrationUid":"u","failed":true,"failureReason":"no"},"evacuationNodeName":"n1"}`), []byte(`{"phase":"Running"}`), "x")
	f.Fuzz(func(t *testing.T, vmi, pod []byte, text string) {
		w := newWorld().vm(v1.RunStrategyAlways, v1.VirtualMachineStatusRunning, nil).vmi(builder.MakeVMI("demo").UID("u"))
		if json.Unmarshal(vmi, &w.s.VMI.Status) != nil {
			return
		}
		launcher := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "virt-launcher-demo"}}
		if json.Unmarshal(pod, &launcher.Status) != nil {
			return
		}
		w.s.VMI.DeletionTimestamp, w.s.Pods = nil, []corev1.Pod{launcher}
		w.s.VM.Status.Conditions = []v1.VirtualMachineCondition{{Type: v1.VirtualMachineFailure, Status: corev1.ConditionTrue,
			Reason: text, Message: text}}
		for _, kind := range []string{"Pod", "VirtualMachineInstance"} {
			w.s.Events = append(w.s.Events, corev1.Event{
				InvolvedObject: corev1.ObjectReference{Kind: kind,
					Name: ptr.Deref(map[bool]*string{true: &launcher.Name}[kind == "Pod"], "demo")},
				Type: corev1.EventTypeWarning, Reason: text, Message: text,
			})
		}
		var report bytes.Buffer
		if err := Explain(w.s).Print(&report); err != nil {
			t.Fatal(err)
		}
		if report.Len() > maxReport {
			t.Errorf("a report of %d bytes", report.Len())
		}
		for _, r := range report.String() {
			if r != '\n' && !unicode.IsGraphic(r) {
				t.Fatalf("%U reaches the terminal: %.400q", r, report.String())
			}
		}
	})
}
