// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agentapi

// CapabilitiesKey is the key of the report in the ConfigMap.
const CapabilitiesKey = "capabilities.json"

// LabelValue is the value of the label kubevirt.io on an agent's Lease and ConfigMap.
const LabelValue = "virt-handler"

// ObjectName returns the name of an agent's Lease and ConfigMap in the install namespace.
func ObjectName(node string) string { return "virt-handler." + node }

// Capabilities is the report of what QEMU and libvirt of the launcher image support on a node. The agent writes it to a
// ConfigMap when it changes, and virt-controller sets labels of the Node from it. It comes from a node, which is less
// trusted than the control plane, so virt-controller validates and limits every entry.
type Capabilities struct {
	// Arch is the node's architecture, by its name in Go and Kubernetes, such as amd64.
	Arch string `json:"arch"`
	// KVM reports whether /dev/kvm can be used on the node.
	KVM bool `json:"kvm"`
	// Devices reports whether the node's device plugins are registered and healthy, and so a VM can be scheduled.
	Devices bool `json:"devices"`
	// CPUManager reports whether the kubelet assigns exclusive CPUs to Guaranteed containers.
	CPUManager bool `json:"cpuManager"`
	// Realtime reports whether the kernel does not limit the run time of realtime threads.
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
	// KnownCPUModels are the named models that libvirt knows, whether or not the node can run them. A guest with one of
	// them may run on a node that cannot, with fewer features.
	KnownCPUModels []string `json:"knownCpuModels,omitempty"`
	// CPUFeatures are the features that a guest can require on the node.
	CPUFeatures []string `json:"cpuFeatures,omitempty"`
	// HypervFeatures are the Hyper-V enlightenments that KVM supports on the node.
	HypervFeatures []string `json:"hypervFeatures,omitempty"`
	// QEMUVersion and LibvirtVersion are those of the launcher image.
	QEMUVersion    string `json:"qemuVersion,omitempty"`
	LibvirtVersion string `json:"libvirtVersion,omitempty"`
}
