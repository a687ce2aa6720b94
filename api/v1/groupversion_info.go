// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package v1 contains the kubevirt.io/v1 API: VirtualMachine, VirtualMachineInstance with its replica sets, migrations
// and presets, and KubeVirt; and the bodies of subresources.kubevirt.io that act on them.
//
// On the wire it equals KubeVirt 1.9: JSON names, types, enums, list keys and optionality are equal, so that a manifest
// or a client written for KubeVirt works unchanged. Go names are equal as well, which lets code written against
// KubeVirt's own module move over by changing an import.
// +kubebuilder:object:generate=true
// +groupName=kubevirt.io
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of the core kinds.
const GroupName = "kubevirt.io"

// SubresourceGroupName is the API group of the requests that act on VMs: console, start, migrate and so on.
const SubresourceGroupName = "subresources.kubevirt.io"

// SubresourceVersions are the versions of SubresourceGroupName, the preferred one first. They are identical.
var SubresourceVersions = []string{"v1", "v1alpha3"}

var (
	// GroupVersion is the group and version of the kinds in this package.
	GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1"}

	// SchemeBuilder collects the functions that add this package's kinds to a scheme.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds this package's kinds to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

// Kinds with their group and version, for owner references and events.
var (
	// VirtualMachineGroupVersionKind is kubevirt.io/v1 VirtualMachine.
	VirtualMachineGroupVersionKind = GroupVersion.WithKind("VirtualMachine")
	// VirtualMachineInstanceGroupVersionKind is kubevirt.io/v1 VirtualMachineInstance.
	VirtualMachineInstanceGroupVersionKind = GroupVersion.WithKind("VirtualMachineInstance")
	// VirtualMachineInstanceReplicaSetGroupVersionKind is kubevirt.io/v1 VirtualMachineInstanceReplicaSet.
	VirtualMachineInstanceReplicaSetGroupVersionKind = GroupVersion.WithKind("VirtualMachineInstanceReplicaSet")
	// VirtualMachineInstanceMigrationGroupVersionKind is kubevirt.io/v1 VirtualMachineInstanceMigration.
	VirtualMachineInstanceMigrationGroupVersionKind = GroupVersion.WithKind("VirtualMachineInstanceMigration")
	// VirtualMachineInstancePresetGroupVersionKind is kubevirt.io/v1 VirtualMachineInstancePreset.
	VirtualMachineInstancePresetGroupVersionKind = GroupVersion.WithKind("VirtualMachineInstancePreset")
	// KubeVirtGroupVersionKind is kubevirt.io/v1 KubeVirt.
	KubeVirtGroupVersionKind = GroupVersion.WithKind("KubeVirt")
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&VirtualMachine{}, &VirtualMachineList{},
		&VirtualMachineInstance{}, &VirtualMachineInstanceList{},
		&VirtualMachineInstanceReplicaSet{}, &VirtualMachineInstanceReplicaSetList{},
		&VirtualMachineInstanceMigration{}, &VirtualMachineInstanceMigrationList{},
		&VirtualMachineInstancePreset{}, &VirtualMachineInstancePresetList{},
		&KubeVirt{}, &KubeVirtList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
