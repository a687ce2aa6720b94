// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package nodecapabilities is the report in which an agent tells the manager what its node can run. The
// agent writes it to a ConfigMap when it changes; the manager turns it into labels on the Node. It travels
// from a node to the control plane, so the reader caps and validates every entry.
package nodecapabilities

// DataKey is the key of the report in the ConfigMap.
const DataKey = "capabilities.json"

// LabelValue is the value of the label kubevirt.io on an agent's Lease and ConfigMap.
const LabelValue = "virt-handler"

// ObjectName is the name of an agent's Lease and ConfigMap in the install namespace.
func ObjectName(node string) string { return "virt-handler." + node }

// Report says what QEMU and libvirt of the launcher image can do on a node.
type Report struct {
	// Arch is the node's architecture as Go and Kubernetes name it, such as amd64.
	Arch string `json:"arch"`
	// KVM says that /dev/kvm can be used on the node.
	KVM bool `json:"kvm"`
	// Devices says that the node's device plugins are registered and healthy, and so a VM can be scheduled.
	Devices bool `json:"devices"`
	// CPUManager says that the kubelet gives Guaranteed containers CPUs for themselves.
	CPUManager bool `json:"cpuManager"`
	// Realtime says that the kernel lets realtime threads run for as long as they want.
	Realtime bool `json:"realtime"`
	// MachineTypes are QEMU's machine types, such as q35 and pc-q35-10.0.
	MachineTypes []string `json:"machineTypes,omitempty"`
	// HostModel is the CPU model that host-model resolves to on the node.
	HostModel string `json:"hostModel,omitempty"`
	// HostModelFeatures are the features that host-model requires beyond its model.
	HostModelFeatures []string `json:"hostModelFeatures,omitempty"`
	// Vendor is the CPU's vendor, such as AMD or Intel.
	Vendor string `json:"vendor,omitempty"`
	// CPUModels are the named models that the node can run.
	CPUModels []string `json:"cpuModels,omitempty"`
	// CPUFeatures are the features that a guest can require on the node.
	CPUFeatures []string `json:"cpuFeatures,omitempty"`
	// HypervFeatures are the Hyper-V enlightenments that KVM offers on the node.
	HypervFeatures []string `json:"hypervFeatures,omitempty"`
	// QEMUVersion and LibvirtVersion are those of the launcher image.
	QEMUVersion    string `json:"qemuVersion,omitempty"`
	LibvirtVersion string `json:"libvirtVersion,omitempty"`
}
