// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package nodeloss decides what a Node whose agent does not respond means for its guests, and has the commands with
// which an administrator takes the Node out of service. docs/adr/0031-a-lost-node.md has the reasons.
package nodeloss

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Verdict is what a silent agent means for the guests of its Node.
type Verdict int

// The verdicts.
const (
	// AgentSilent means that the kubelet responds, so that the guests most likely run.
	AgentSilent Verdict = iota
	// Lost means that the kubelet does not respond either. The guests may still run and write to their disks.
	Lost
	// Fenced means that the Node is declared out of service and the kubelet does not contradict that by responding.
	Fenced
)

// Judge returns the verdict about a Node whose agent is silent. As in Kubernetes, which releases the Pods and volumes
// of such a Node, the taint counts with any value and effect, but only while the kubelet does not respond.
func Judge(node *corev1.Node) Verdict {
	switch {
	case Responds(node):
		return AgentSilent
	case OutOfService(node):
		return Fenced
	default:
		return Lost
	}
}

// Responds reports whether the kubelet responds. The node lifecycle controller sets the condition to Unknown when it
// does not.
func Responds(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// OutOfService reports whether an administrator or a fencing agent declared the Node out of service.
func OutOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints,
		func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// TaintCommand returns the command that declares a node out of service. Its guests then count as ended once their Pods
// are deleted.
func TaintCommand(node string) string {
	return fmt.Sprintf("kubectl taint nodes %s %s=nodeshutdown:NoExecute", node, corev1.TaintNodeOutOfService)
}

// UntaintCommand returns the command that takes a node back into service.
func UntaintCommand(node string) string {
	return fmt.Sprintf("kubectl taint nodes %s %s-", node, corev1.TaintNodeOutOfService)
}
