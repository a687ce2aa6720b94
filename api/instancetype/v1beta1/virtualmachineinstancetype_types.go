// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// VirtualMachineInstancetype is a size that the VMs of its namespace can refer to: CPU, memory and what else has a
// cost. A VM cannot override what its instance type sets; one that tries is refused.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachineinstancetypes,singular=virtualmachineinstancetype,scope=Namespaced,shortName=vminstancetype;vminstancetypes;vmf;vmfs,categories=all
type VirtualMachineInstancetype struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the size. Required. Set by the user. A VM that exists keeps the spec that it was first given.
	Spec VirtualMachineInstancetypeSpec `json:"spec"`
}

// VirtualMachineInstancetypeList is a list of VirtualMachineInstancetypes.
// +kubebuilder:object:root=true
type VirtualMachineInstancetypeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineInstancetype `json:"items"`
}

// VirtualMachineClusterInstancetype is a size that the VMs of every namespace can refer to. It differs from a
// VirtualMachineInstancetype in its scope only.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachineclusterinstancetypes,singular=virtualmachineclusterinstancetype,scope=Cluster,shortName=vmclusterinstancetype;vmclusterinstancetypes;vmcf;vmcfs
type VirtualMachineClusterInstancetype struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the size. Required. Set by the administrator. A VM that exists keeps the spec that it was first given.
	Spec VirtualMachineInstancetypeSpec `json:"spec"`
}

// VirtualMachineClusterInstancetypeList is a list of VirtualMachineClusterInstancetypes.
// +kubebuilder:object:root=true
type VirtualMachineClusterInstancetypeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineClusterInstancetype `json:"items"`
}

// VirtualMachineInstancetypeSpec is a size: CPU and memory always, the rest as far as it is set. A VM that refers to
// the instance type must leave all of it to the instance type.
type VirtualMachineInstancetypeSpec struct {
	// nodeSelector contains labels that a node must have to run the VM. Default: none. A VM that has a nodeSelector of its
	// own conflicts with it.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// schedulerName is the scheduler that places the VM's Pod. Default: the cluster's default scheduler. A VM that names
	// a scheduler itself conflicts with it.
	// +optional
	SchedulerName string `json:"schedulerName,omitempty"`
	// cpu is the number of CPUs and how they are backed. Required.
	CPU CPUInstancetype `json:"cpu"`
	// memory is the amount of memory and how it is backed. Required.
	Memory MemoryInstancetype `json:"memory"`
	// gpus are the graphics cards that the guest gets. Default: none.
	// +optional
	// +listType=atomic
	GPUs []v1.GPU `json:"gpus,omitempty"`
	// hostDevices are the devices of the node that the guest gets. Default: none.
	// +optional
	// +listType=atomic
	HostDevices []v1.HostDevice `json:"hostDevices,omitempty"`
	// ioThreadsPolicy defines which threads do the work of the disks: shared, auto or supplementalPool. Default: QEMU's
	// main thread does it.
	// +optional
	IOThreadsPolicy *v1.IOThreadsPolicy `json:"ioThreadsPolicy,omitempty"`
	// ioThreads is the number of threads for the policy supplementalPool. No default.
	// +optional
	IOThreads *v1.DiskIOThreads `json:"ioThreads,omitempty"`
	// launchSecurity runs the guest as a confidential one. Default: it is not. Deprecated: it will leave the instance
	// type in its next version; a preference has preferredLaunchSecurity.
	// +optional
	LaunchSecurity *v1.LaunchSecurity `json:"launchSecurity,omitempty"`
	// annotations are put on the VM's instance. Default: none. A VM whose template has one of these keys with another
	// value conflicts with it.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// CPUInstancetype is the number of CPUs and how they are backed.
type CPUInstancetype struct {
	// guest is the number of CPUs that the guest sees. Required. Whether they are sockets, cores or threads is up to the
	// preference.
	Guest uint32 `json:"guest"`
	// model is host-model, host-passthrough or the name of a model that libvirt knows. Default: the VM's, or the
	// cluster's.
	// +optional
	Model *string `json:"model,omitempty"`
	// dedicatedCPUPlacement gives each CPU of the guest a CPU of the node for itself. Default: false.
	// +optional
	DedicatedCPUPlacement *bool `json:"dedicatedCPUPlacement,omitempty"`
	// numa shows the guest the node's NUMA layout. Default: it sees one NUMA node.
	// +optional
	NUMA *v1.NUMA `json:"numa,omitempty"`
	// isolateEmulatorThread gives QEMU's own threads one more dedicated CPU. It needs dedicatedCPUPlacement. Default:
	// false.
	// +optional
	IsolateEmulatorThread *bool `json:"isolateEmulatorThread,omitempty"`
	// realtime runs the guest's CPUs with a realtime priority. It needs dedicatedCPUPlacement. Default: it does not.
	// +optional
	Realtime *v1.Realtime `json:"realtime,omitempty"`
	// maxSockets is the number of sockets up to which some can be added while the guest runs. Default: the cluster's
	// ratio times the sockets that the guest starts with.
	// +optional
	MaxSockets *uint32 `json:"maxSockets,omitempty"`
}

// MemoryInstancetype is the amount of memory and how it is backed.
type MemoryInstancetype struct {
	// guest is the memory that the guest sees, such as 4Gi. Required.
	Guest resource.Quantity `json:"guest"`
	// hugepages backs the guest's memory with huge pages of the node. Default: ordinary pages.
	// +optional
	Hugepages *v1.Hugepages `json:"hugepages,omitempty"`
	// overcommitPercent is the part of the guest's memory, in percent, that the Pod does not request from the node.
	// Default: 0. With more than 0 a node can run out of memory and kill guests. Not together with hugepages.
	// +optional
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:validation:Minimum=0
	OvercommitPercent int `json:"overcommitPercent,omitempty"`
	// maxGuest is the memory up to which some can be added while the guest runs, such as 16Gi. Default: the cluster's
	// ratio times guest.
	// +optional
	MaxGuest *resource.Quantity `json:"maxGuest,omitempty"`
}
