// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package nodeloss judges a Node whose agent is silent: what is known about its guests, and how somebody who knows more
// releases them. docs/adr/0031-a-lost-node.md has the reasons.
package nodeloss

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Verdict is what a Node with a silent agent means to its guests.
type Verdict int

// The verdicts.
const (
	// AgentSilent: the kubelet answers, so the guests most likely run.
	AgentSilent Verdict = iota
	// Lost: nothing of the node answers. Its guests may run and write their disks all the same.
	Lost
	// Fenced: somebody who can know said that nothing runs there, and nothing there contradicts it.
	Fenced
)

// Judge judges a Node whose agent is silent. The taint counts as in Kubernetes, which releases the Pods and volumes of such
// a Node: whatever its value and effect, and only while the kubelet does not answer.
func Judge(node *corev1.Node) Verdict {
	switch {
	case Answers(node):
		return AgentSilent
	case OutOfService(node):
		return Fenced
	default:
		return Lost
	}
}

// Answers says that the kubelet answers. The node lifecycle controller makes the condition Unknown when it does not.
func Answers(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// OutOfService says that somebody declared the Node out of service: an administrator, or a fencing agent.
func OutOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// Release is the command that declares a node out of service, which releases its guests.
func Release(node string) string {
	return fmt.Sprintf("kubectl taint nodes %s %s=nodeshutdown:NoExecute", node, corev1.TaintNodeOutOfService)
}

// Return is the command that takes a node into service again.
func Return(node string) string {
	return fmt.Sprintf("kubectl taint nodes %s %s-", node, corev1.TaintNodeOutOfService)
}
