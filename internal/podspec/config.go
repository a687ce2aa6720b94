// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package podspec renders the Pod in which a VirtualMachineInstance runs. It is pure: a VMI and plain
// configuration in, a Pod out, the inputs untouched. What the Pod looks like from inside is named in package
// launcherpod.
package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// Config is what the Pod depends on beyond the VMI.
type Config struct {
	// LauncherImage is the image of the compute container.
	LauncherImage string
	// ImagePullPolicy is that of the launcher image. Empty means Kubernetes' default.
	ImagePullPolicy corev1.PullPolicy
	// ImagePullSecrets are used in addition to those that the VMI's images name.
	ImagePullSecrets []corev1.LocalObjectReference
	// RuntimeClass is the Pod's runtime class. Empty means the cluster's.
	RuntimeClass string
	// Verbosity is the launcher's log level. 0 is what a user needs.
	Verbosity uint
	// UseEmulation runs the guest without KVM: nothing asks for /dev/kvm, for vhost-net or for a node's CPU.
	UseEmulation bool
	// DefaultArchitecture is that of a VMI that names none.
	DefaultArchitecture string
	// CPUAllocationRatio is the number of vCPUs for one requested CPU. Less than 1 means 1.
	CPUAllocationRatio int
	// CPURequest replaces the computed request of a VMI that has none.
	CPURequest *resource.Quantity
	// MemoryOvercommit is the guest's memory in percent of what is requested for it. Less than 1 means 100.
	MemoryOvercommit int
	// AdditionalGuestMemoryOverheadRatio multiplies the overhead. Less than 1 means 1.
	AdditionalGuestMemoryOverheadRatio float64
	// ConsoleLogResources replace the requests and limits of the container with the guest's console, each for itself.
	ConsoleLogResources corev1.ResourceRequirements
	// RestartsContainers says that the cluster restarts a container by a policy of its own: Kubernetes 1.35 does, 1.33 refuses it.
	RestartsContainers bool
	// LimitCPU and LimitMemory say that each container needs such a limit, whether or not the VMI has one: a quota of the namespace
	// counts it, or the cluster's administrator wants it.
	LimitCPU, LimitMemory bool
	// MemoryLimitRatio is the limit that LimitMemory makes, in proportion to the request. Less than 1 means 2.
	MemoryLimitRatio float64
	// SkipBackupHooks leaves the hooks for backups out of the Pod, unless the VMI says otherwise.
	SkipBackupHooks bool
	// Live are the annotations and labels that follow the VMI while the Pod runs.
	Live LiveMetadata
	// NodeSelectors are added to the VMI's.
	NodeSelectors map[string]string
	// Claims describes the claims of the VMI's volumes by the volume's name. A volume that is not in it is taken
	// for a filesystem.
	Claims map[string]Claim
	// NetworkResources are the resources that the NetworkAttachmentDefinitions of the VMI's networks name, by the
	// network's name. One of each is requested.
	NetworkResources map[string]corev1.ResourceName
	// MigrationNetwork is the NetworkAttachmentDefinition of the network over which guests migrate. Without a name they do so over the
	// network of Pods.
	MigrationNetwork types.NamespacedName
	// StateClaim is the name of the claim with the state of the machine that lasts. It must be there for a VMI that has
	// such state.
	StateClaim string
	// StateShared says that other Pods can use that claim at the same time.
	StateShared bool
}

// Claim is what the Pod must know about a claim.
type Claim struct {
	// Block says that the claim is a block device and not a filesystem.
	Block bool
}
