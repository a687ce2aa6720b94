// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus/nodeloss"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/health"
)

// A VMI counts as current only while its guest runs and is ready.
func TestHealth(t *testing.T) {
	now := time.Unix(1000, 0)
	ready := builder.MakeVMI("vmi").Phase(v1.Running).Condition(v1.VirtualMachineInstanceReady, corev1.ConditionTrue, "",
		"").Obj
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec: corev1.PodSpec{NodeName: "node"}}
	// Pending is the schema's default.
	fresh := builder.MakeVMI("vmi").Phase(v1.Pending).Obj
	deleted := func() *v1.VirtualMachineInstance {
		vmi := ready()
		vmi.DeletionTimestamp = &metav1.Time{Time: now}
		return vmi
	}
	for name, tc := range map[string]struct {
		vmi           func() *v1.VirtualMachineInstance
		pod           *corev1.Pod
		silence       *silence
		result        result
		kstatus, argo string
	}{
		"no Pod":                  {fresh, nil, nil, result{problem: &problem{reason: "FailedCreate", message: "no"}}, health.InProgress, health.Progressing},
		"a Pod that does not run": {fresh, pod, nil, result{}, health.InProgress, health.Progressing},
		"unschedulable": {fresh, pod, nil, result{problem: &problem{reason: "Unschedulable", unschedulable: true, fromScheduler: true}},
			health.InProgress, health.Progressing},
		"assigned":         {fresh, pod, nil, result{assigned: true}, health.InProgress, health.Progressing},
		"ready":            {ready, pod, nil, result{}, health.Current, health.Healthy},
		"its agent hangs":  {ready, pod, &silence{nodeloss.AgentSilent, v1.VirtualMachineInstanceReasonAgentSilent, ""}, result{}, health.Current, health.Healthy},
		"its node is lost": {ready, pod, &silence{nodeloss.Lost, v1.VirtualMachineInstanceReasonNodeLost, ""}, result{}, health.InProgress, health.Degraded},
		"failed":           {ready, pod, nil, result{final: &finalState{v1.Failed, "Error", "no"}}, health.InProgress, health.Degraded},
		// kstatus waits for Ready, which is false as in KubeVirt.
		"succeeded": {ready, pod, nil, result{final: &finalState{v1.Succeeded, "GuestShutdown", "off"}}, health.InProgress, health.Suspended},
		"deleted":   {deleted, pod, nil, result{}, health.Terminating, health.Progressing},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := tc.vmi()
			computeStatus(&observed{now: now, vmi: vmi, pod: tc.pod, silence: tc.silence}, &tc.result, &vmi.Status)
			if got := health.Kstatus(t, vmi); got != tc.kstatus {
				t.Errorf("kstatus: got %s, want %s", got, tc.kstatus)
			}
			if got := health.ArgoVMI(vmi); got != tc.argo {
				t.Errorf("Argo CD: got %s, want %s", got, tc.argo)
			}
		})
	}
}
