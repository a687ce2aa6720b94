// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package nodeloss

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestJudge(t *testing.T) {
	outOfService := corev1.Taint{Key: "node.kubernetes.io/out-of-service", Value: "nodeshutdown",
		Effect: corev1.TaintEffectNoExecute}
	unreachable := corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}
	for _, c := range []struct {
		name   string
		ready  corev1.ConditionStatus
		taints []corev1.Taint
		want   Verdict
	}{
		{"the kubelet responds", corev1.ConditionTrue, nil, AgentSilent},
		{"the kubelet does not respond", corev1.ConditionUnknown, []corev1.Taint{unreachable}, Lost},
		{"the kubelet is not ready", corev1.ConditionFalse, nil, Lost},
		{"the kubelet never reported", "", nil, Lost},
		{"out of service", corev1.ConditionUnknown, []corev1.Taint{unreachable, outOfService}, Fenced},
		{"out of service without an effect on Pods", corev1.ConditionFalse, []corev1.Taint{{Key: outOfService.Key, Effect: corev1.TaintEffectNoSchedule}}, Fenced},
		{"out of service, and the kubelet responds", corev1.ConditionTrue, []corev1.Taint{outOfService}, AgentSilent},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := &corev1.Node{Spec: corev1.NodeSpec{Taints: c.taints}}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}}
			if c.ready != "" {
				node.Status.Conditions = append(node.Status.Conditions,
					corev1.NodeCondition{Type: corev1.NodeReady, Status: c.ready})
			}
			if got := Judge(node); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}
