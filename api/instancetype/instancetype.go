// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package instancetype contains what all versions of the API group instancetype.kubevirt.io share: its name, its
// resources, and the labels by which volumes and revisions refer to instance types and preferences.
package instancetype

// GroupName is the name of the API group.
const GroupName = "instancetype.kubevirt.io"

// LatestVersion is the version in which a ControllerRevision keeps an instance type or a preference.
const LatestVersion = "v1beta1"

// Names of the group's resources.
const (
	// SingularResourceName is one VirtualMachineInstancetype.
	SingularResourceName = "virtualmachineinstancetype"
	// PluralResourceName is the resource of VirtualMachineInstancetypes.
	PluralResourceName = SingularResourceName + "s"
	// ClusterSingularResourceName is one VirtualMachineClusterInstancetype.
	ClusterSingularResourceName = "virtualmachineclusterinstancetype"
	// ClusterPluralResourceName is the resource of VirtualMachineClusterInstancetypes.
	ClusterPluralResourceName = ClusterSingularResourceName + "s"
	// SingularPreferenceResourceName is one VirtualMachinePreference.
	SingularPreferenceResourceName = "virtualmachinepreference"
	// PluralPreferenceResourceName is the resource of VirtualMachinePreferences.
	PluralPreferenceResourceName = SingularPreferenceResourceName + "s"
	// ClusterSingularPreferenceResourceName is one VirtualMachineClusterPreference.
	ClusterSingularPreferenceResourceName = "virtualmachineclusterpreference"
	// ClusterPluralPreferenceResourceName is the resource of VirtualMachineClusterPreferences.
	ClusterPluralPreferenceResourceName = ClusterSingularPreferenceResourceName + "s"
)

// Labels that users put on a PersistentVolumeClaim, a DataVolume or a DataSource. A VM whose matcher sets
// inferFromVolume reads them from its volume.
const (
	// DefaultInstancetypeLabel names the instance type that suits what is on the volume.
	DefaultInstancetypeLabel = "instancetype.kubevirt.io/default-instancetype"
	// DefaultInstancetypeKindLabel is the kind of that instance type; without it, the cluster-wide kind.
	DefaultInstancetypeKindLabel = "instancetype.kubevirt.io/default-instancetype-kind"
	// DefaultPreferenceLabel names the preference that suits what is on the volume.
	DefaultPreferenceLabel = "instancetype.kubevirt.io/default-preference"
	// DefaultPreferenceKindLabel is the kind of that preference; without it, the cluster-wide kind.
	DefaultPreferenceKindLabel = "instancetype.kubevirt.io/default-preference-kind"
)

// Labels that virt-controller puts on a ControllerRevision that keeps an instance type or a preference as a VM uses it.
const (
	// ControllerRevisionObjectGenerationLabel is the generation of the object that was kept.
	ControllerRevisionObjectGenerationLabel = "instancetype.kubevirt.io/object-generation"
	// ControllerRevisionObjectKindLabel is its kind.
	ControllerRevisionObjectKindLabel = "instancetype.kubevirt.io/object-kind"
	// ControllerRevisionObjectNameLabel is its name.
	ControllerRevisionObjectNameLabel = "instancetype.kubevirt.io/object-name"
	// ControllerRevisionObjectUIDLabel is its UID.
	ControllerRevisionObjectUIDLabel = "instancetype.kubevirt.io/object-uid"
	// ControllerRevisionObjectVersionLabel is the API version in which it was kept.
	ControllerRevisionObjectVersionLabel = "instancetype.kubevirt.io/object-version"
)
