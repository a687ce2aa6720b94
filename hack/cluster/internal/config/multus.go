// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package config

import "github.com/vireo-project/vireo/hack/cluster/internal/plan"

const (
	// MultusFile is the name of Multus' configuration among those of the network plugins, of which containerd uses the
	// first.
	MultusFile = "00-multus.conf"
	// SecondBridge is a bridge on each node, connected to those of the other nodes and of the machine.
	// NetworkAttachmentDefinitions name it.
	SecondBridge = "second"
)

// multusConfig makes Multus call the network plugin that the node otherwise calls, and read Pods and
// NetworkAttachmentDefinitions as the node's kubelet, which needs a permission to read the latter.
func (r renderer) multusConfig(n plan.Node) any {
	return map[string]any{
		"cniVersion": "1.0.0",
		"name":       "multus",
		"type":       "multus",
		"kubeconfig": r.layout.Kubeconfig(n.Name + "-kubelet"),
		"binDir":     r.facts.CNI,
		"delegates":  []any{r.networkConfig(n)},
	}
}
