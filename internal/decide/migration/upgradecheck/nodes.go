// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package upgradecheck

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

// filter is one requirement of a guest for its node. The problem names the nodes that pass the most filters: if a guest
// is pinned to its node, its problem is not that another node is cordoned.
type filter struct {
	passes func(*corev1.Node) bool
	reason string
	// message describes the nodes that fail this filter and pass all earlier ones.
	message func(nodes []string) string
}

// checkNodes returns why the target's Pod fits on no other node, or nil. It stops at the first node that fits, which
// makes it fast for many guests.
func checkNodes(o *Observed, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) *Problem {
	if o.Nodes == nil {
		return nil
	}
	filters := filters(vmi, pod)
	failed := make([][]string, len(filters))
	furthest := 0
	for i := range o.Nodes {
		node := &o.Nodes[i]
		if node.Name == vmi.Status.NodeName {
			continue
		}
		first := slices.IndexFunc(filters, func(f filter) bool { return !f.passes(node) })
		if first < 0 {
			return nil
		}
		failed[first] = append(failed[first], node.Name)
		furthest = max(furthest, first)
	}
	return &Problem{Reason: filters[furthest].reason, Message: filters[furthest].message(failed[furthest])}
}

func filters(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) []filter {
	cpu, selector := map[string]string{}, map[string]string{}
	for key, value := range pod.Spec.NodeSelector {
		switch {
		case key == v1.NodeSchedulable:
		case isCPU(key):
			cpu[key] = value
		default:
			selector[key] = value
		}
	}
	selecting := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: selector, Affinity: pod.Spec.Affinity}}
	affinity := nodeaffinity.GetRequiredNodeAffinity(selecting)
	return []filter{
		{reason: ReasonNoOtherNode, message: noOtherNode, passes: func(n *corev1.Node) bool {
			return !n.Spec.Unschedulable && n.Labels[v1.NodeSchedulable] == "true"
		}},
		{reason: ReasonNodeSelector, passes: func(n *corev1.Node) bool {
			fits, err := affinity.Match(n)
			return err == nil && fits
		}, message: func(nodes []string) string {
			return fmt.Sprintf("no other node has what it requires (%s): %s", requirements(selector, vmi.Spec.Affinity),
				listNodes(nodes))
		}},
		{reason: ReasonTaints, passes: func(n *corev1.Node) bool {
			_, untolerated := helpers.FindMatchingUntoleratedTaint(klog.Background(), n.Spec.Taints, pod.Spec.Tolerations,
				preventsScheduling, true)
			return !untolerated
		}, message: func(nodes []string) string {
			return "it does not tolerate the taints of the other nodes that it could be on: " + listNodes(nodes)
		}},
		{reason: ReasonCPU, passes: func(n *corev1.Node) bool {
			return labels.SelectorFromSet(labels.Set(cpu)).Matches(labels.Set(n.Labels))
		}, message: func(nodes []string) string {
			return fmt.Sprintf("no other node that it could be on runs its CPU (%s): %s", pairs(cpu), listNodes(nodes))
		}},
		{reason: ReasonDevices, passes: func(n *corev1.Node) bool { return len(missingDevices(pod, n)) == 0 }, message: func(nodes []string) string {
			return fmt.Sprintf("no other node that it could be on has all its devices%s: %s", remedy(pod), listNodes(nodes))
		}},
	}
}

// LoadVhostNet is what to do on a node without the device vhost-net.
const LoadVhostNet = "load the kernel module vhost_net on the node"

// devicePrefix is that of the resources of virt-device-plugin.
const devicePrefix = "devices.kubevirt.io/"

// devices returns the devices that a Pod requests.
func devices(pod *corev1.Pod) []corev1.ResourceName {
	var names []corev1.ResourceName
	for i := range pod.Spec.Containers {
		for name := range pod.Spec.Containers[i].Resources.Requests {
			if strings.HasPrefix(string(name), devicePrefix) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// missingDevices returns the devices that a Pod requests and a node does not have. They are unknown of a node that
// reports no resources.
func missingDevices(pod *corev1.Pod, node *corev1.Node) []corev1.ResourceName {
	if len(node.Status.Allocatable) == 0 {
		return nil
	}
	return slices.DeleteFunc(devices(pod), func(name corev1.ResourceName) bool {
		has := node.Status.Allocatable[name]
		return !has.IsZero()
	})
}

// remedy names the devices that a Pod requests, and what provides them.
func remedy(pod *corev1.Pod) string {
	names := make([]string, 0, len(pod.Spec.Containers))
	for _, name := range devices(pod) {
		names = append(names, strings.TrimPrefix(string(name), devicePrefix))
	}
	text := strings.Join(names, ", ")
	if slices.Contains(names, "vhost-net") {
		text += "; for vhost-net, " + LoadVhostNet
	}
	return " (" + text + ")"
}

// isCPU reports whether a label describes the CPUs that a node offers to guests.
func isCPU(key string) bool {
	return podspec.IsHostCPULabel(key) || strings.HasPrefix(key, v1.CPUModelLabel) ||
		strings.HasPrefix(key, v1.CPUModelVendorLabel)
}

func preventsScheduling(taint *corev1.Taint) bool {
	return taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute
}

func noOtherNode(others []string) string {
	if len(others) == 0 {
		return "there is no other node"
	}
	return fmt.Sprintf("no other node accepts guests now, because each is cordoned or lacks the label %s=true: %s",
		v1.NodeSchedulable, listNodes(others))
}

// requirements describes a guest's node selector and affinity.
func requirements(selector map[string]string, affinity *corev1.Affinity) string {
	text := pairs(selector)
	if affinity == nil || affinity.NodeAffinity == nil ||
		affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return text
	}
	if text == "" {
		return "its node affinity"
	}
	return text + " and its node affinity"
}

func pairs(set map[string]string) string {
	text := make([]string, 0, len(set))
	for _, key := range slices.Sorted(maps.Keys(set)) {
		text = append(text, key+"="+set[key])
	}
	return strings.Join(text, ",")
}

// listNodes lists at most three nodes.
func listNodes(names []string) string {
	const most = 3
	slices.Sort(names)
	if len(names) <= most {
		return "node " + strings.Join(names, ", ")
	}
	return fmt.Sprintf("node %s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// checkQuotas returns the quotas that do not permit a second Pod of the guest. Quotas with scopes are skipped, because
// the Pod does not contain everything on which they depend.
func checkQuotas(o *Observed, pod *corev1.Pod) []Problem {
	var problems []Problem
	for i := range o.Quotas {
		quota := &o.Quotas[i]
		if quota.Namespace != pod.Namespace || len(quota.Spec.Scopes) > 0 || quota.Spec.ScopeSelector != nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(quota.Status.Hard)) {
			remaining := quota.Status.Hard[name].DeepCopy()
			remaining.Sub(quota.Status.Used[name])
			if need := needs(pod, name); need.Cmp(remaining) > 0 && !need.IsZero() {
				problems = append(problems, Problem{Reason: ReasonQuota, Message: fmt.Sprintf(
					"ResourceQuota %s leaves %s of %s, and its second Pod requests %s", quota.Name, remaining.String(), name,
					need.String())})
			}
		}
	}
	return problems
}

// needs returns how much of a quota's resource a Pod uses. Source: Kubernetes pkg/quota/v1/evaluator/core,
// podUsageHelper.
func needs(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	if name == corev1.ResourcePods || name == "count/pods" {
		return *resource.NewQuantity(1, resource.DecimalSI)
	}
	key, list := string(name), func(c *corev1.Container) corev1.ResourceList { return c.Resources.Requests }
	if rest, limits := strings.CutPrefix(key, "limits."); limits {
		key, list = rest, func(c *corev1.Container) corev1.ResourceList { return c.Resources.Limits }
	} else if rest, requests := strings.CutPrefix(key, corev1.DefaultResourceRequestsPrefix); requests {
		key = rest
	}
	var sum resource.Quantity
	for i := range pod.Spec.Containers {
		sum.Add(list(&pod.Spec.Containers[i])[corev1.ResourceName(key)])
	}
	return sum
}
