// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package podspec builds launcher Pods. It is pure: its results depend on its arguments only, and it does not change them.
// Package launcherpod has the names of what is inside the Pod.
package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// Config is the input of Build beside the VMI.
type Config struct {
	// LauncherImage is the image of the compute container.
	LauncherImage string
	// ImagePullPolicy is the pull policy of the launcher image. Empty means Kubernetes' default.
	ImagePullPolicy corev1.PullPolicy
	// Seccomp is the Pod's seccomp profile. Nil means the container runtime's.
	Seccomp *corev1.SeccompProfile
	// RuntimeClass is the Pod's runtime class. Empty means the cluster's.
	RuntimeClass string
	// Verbosity is the launcher's log level.
	Verbosity uint
	// UseEmulation runs the guest without KVM: the Pod requests neither /dev/kvm nor vhost-net, nor a node with a certain CPU.
	UseEmulation bool
	// DefaultArchitecture is the architecture of a VMI without one.
	DefaultArchitecture string
	// CPUAllocationRatio is the number of vCPUs per requested CPU. Less than 1 means 1.
	CPUAllocationRatio int
	// CPURequest replaces the computed request of a VMI without one.
	CPURequest *resource.Quantity
	// MemoryOvercommit is the guest's memory in percent of its request. Less than 1 means 100.
	MemoryOvercommit int
	// AdditionalGuestMemoryOverheadRatio multiplies the overhead. Less than 1 means 1.
	AdditionalGuestMemoryOverheadRatio float64
	// ConsoleLogResources replace individual requests and limits of the console log's container.
	ConsoleLogResources corev1.ResourceRequirements
	// RestartsContainers reports whether the cluster supports the restart policy of a container: Kubernetes 1.35 does, 1.33
	// refuses it.
	RestartsContainers bool
	// LimitCPU and LimitMemory report whether each container needs such a limit, even if the VMI has none: because of a
	// ResourceQuota in the namespace, or of the cluster's configuration.
	LimitCPU, LimitMemory bool
	// MemoryLimitRatio is the ratio of the limit by LimitMemory to the request. Less than 1 means 2.
	MemoryLimitRatio float64
	// SkipBackupHooks omits the hooks for backups, unless the VMI's annotation enables them.
	SkipBackupHooks bool
	// Live are the annotations and labels that are copied from the VMI while the Pod runs.
	Live LiveMetadata
	// NodeSelectors are added to the VMI's.
	NodeSelectors map[string]string
	// Claims has the claims by name of the VMI's volumes. The claim of a volume that it lacks is treated as a filesystem.
	Claims map[string]Claim
	// HotplugVolumes leaves hotpluggable volumes out of the launcher Pod: attachment Pods have them.
	HotplugVolumes bool
	// HotplugResources replace individual requests and limits of the container of attachment Pods.
	HotplugResources corev1.ResourceRequirements
	// ImageReserveBytes are kept free on the claim of an attachment Pod that gets a disk image.
	ImageReserveBytes uint64
	// ImageTolerateLessPercent is how much smaller than the claim such an image may be if there is less space.
	ImageTolerateLessPercent int
	// VolumeAffinities restrict the launcher Pod to the nodes that can use the hotpluggable volumes.
	VolumeAffinities []corev1.NodeSelector
	// NetworkResources has the resource names of the NetworkAttachmentDefinitions by name of the VMI's networks. The Pod
	// requests one of each.
	NetworkResources map[string]corev1.ResourceName
	// MigrationNetwork is the NetworkAttachmentDefinition of the network for migrations. Empty means the Pod network.
	MigrationNetwork types.NamespacedName
	// StateClaim is the name of the claim with the persistent state of the TPM and of EFI. Required for a VMI with such state.
	StateClaim string
	// StateShared reports whether several Pods can use the claim at the same time.
	StateShared bool
}

// Claim describes a PersistentVolumeClaim.
type Claim struct {
	// Block reports whether the claim's volume mode is Block.
	Block bool
}
