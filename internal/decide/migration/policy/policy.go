// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package policy determines how long a transfer may take, and the configuration of a migration, from the cluster's
// configuration and the MigrationPolicy that matches the VMI best. It is pure.
package policy

import (
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Choose returns the policy that applies to a VMI, or nil. Of the policies that select the VMI and its namespace, it is
// the one with the most labels in its selectors. Ties are broken by the number of labels for the VMI, and then by name.
func Choose(policies []v1alpha1.MigrationPolicy, vmi, namespace map[string]string) *v1alpha1.MigrationPolicy {
	var best *v1alpha1.MigrationPolicy
	for i := range policies {
		policy := &policies[i]
		if selects(policy.Spec.Selectors, vmi, namespace) && (best == nil || beats(policy, best)) {
			best = policy
		}
	}
	return best
}

// selects reports whether the selectors match the labels of VMI and namespace. A policy without selectors, which the
// schema rejects, selects nothing.
func selects(s *v1alpha1.Selectors, vmi, namespace map[string]string) bool {
	return s != nil && labels.SelectorFromSet(labels.Set(s.VirtualMachineInstanceSelector)).Matches(labels.Set(vmi)) &&
		labels.SelectorFromSet(labels.Set(s.NamespaceSelector)).Matches(labels.Set(namespace))
}

func beats(a, b *v1alpha1.MigrationPolicy) bool {
	vmiA, vmiB := len(a.Spec.Selectors.VirtualMachineInstanceSelector),
		len(b.Spec.Selectors.VirtualMachineInstanceSelector)
	allA, allB := vmiA+len(a.Spec.Selectors.NamespaceSelector), vmiB+len(b.Spec.Selectors.NamespaceSelector)
	switch {
	case allA != allB:
		return allA > allB
	case vmiA != vmiB:
		return vmiA > vmiB
	default:
		return a.Name < b.Name
	}
}

// Resolve returns the cluster's configuration, overridden by the fields of a policy, which may be nil, and the policy's
// name if it sets any field. The result shares no memory with the arguments.
func Resolve(
	cluster *v1.MigrationConfiguration, policy *v1alpha1.MigrationPolicy,
) (*v1.VMIMConfigurationOptions, *string) {
	c := cluster.DeepCopy()
	out := &v1.VMIMConfigurationOptions{
		NodeDrainTaintKey:                 c.NodeDrainTaintKey,
		ParallelOutboundMigrationsPerNode: c.ParallelOutboundMigrationsPerNode,
		ParallelMigrationsPerCluster:      c.ParallelMigrationsPerCluster,
		AllowAutoConverge:                 c.AllowAutoConverge,
		BandwidthPerMigration:             c.BandwidthPerMigration,
		CompletionTimeoutPerGiB:           c.CompletionTimeoutPerGiB,
		MaxDowntimeMs:                     c.MaxDowntimeMs,
		ProgressTimeout:                   c.ProgressTimeout,
		UtilityVolumesTimeout:             c.UtilityVolumesTimeout,
		UnsafeMigrationOverride:           c.UnsafeMigrationOverride,
		AllowPostCopy:                     c.AllowPostCopy,
		AllowWorkloadDisruption:           c.AllowWorkloadDisruption,
		DisableTLS:                        c.DisableTLS,
		Network:                           c.Network,
		MatchSELinuxLevelOnMigration:      c.MatchSELinuxLevelOnMigration,
	}
	if policy == nil || !override(out, policy.Spec.DeepCopy()) {
		return out, nil
	}
	return out, ptr.To(policy.Name)
}

// override sets the fields of the policy, and reports whether there are any.
func override(out *v1.VMIMConfigurationOptions, spec *v1alpha1.MigrationPolicySpec) bool {
	disruption := spec.AllowWorkloadDisruption
	if disruption == nil {
		disruption = spec.AllowPostCopy
	}
	return slices.Contains([]bool{
		set(&out.AllowAutoConverge, spec.AllowAutoConverge),
		set(&out.BandwidthPerMigration, spec.BandwidthPerMigration),
		set(&out.CompletionTimeoutPerGiB, spec.CompletionTimeoutPerGiB),
		set(&out.MaxDowntimeMs, spec.MaxDowntimeMs),
		set(&out.AllowPostCopy, spec.AllowPostCopy),
		set(&out.AllowWorkloadDisruption, disruption),
		set(&out.ExperimentalMigrationOptions, spec.ExperimentalMigrationOptions),
	}, true)
}

func set[T any](to **T, value *T) bool {
	if value == nil {
		return false
	}
	*to = value
	return true
}

const (
	gib = 1 << 30
	// extraMemory is for the memory of the display, the firmware and devices, which is also transferred.
	extraMemory = gib
	// maxUnreserved bounds memory and disks that exceed the VMI's requests, because the author of a VMI can choose any
	// size.
	maxUnreserved = 64 * gib
	// defaultPerGiB is the default of completionTimeoutPerGiB. KubeVirt's (pkg/virt-config, defaults of migrations).
	defaultPerGiB = 150 * time.Second
)

// ImageTimeout bounds the comparison of a guest's images on both nodes before the transfer. It suffices for 90 GB at 50
// MB/s.
const ImageTimeout = 30 * time.Minute

// PerGiB returns how long the transfer of each GiB of memory and disks may take. 0 means that there is no limit.
func PerGiB(c *v1.VMIMConfigurationOptions) time.Duration {
	if c == nil || c.CompletionTimeoutPerGiB == nil {
		return defaultPerGiB
	}
	// More than a year counts as a year, so that the duration does not overflow.
	return time.Duration(min(max(*c.CompletionTimeoutPerGiB, 0), 365*24*3600)) * time.Second
}

// MaxDuration returns how long the transfer of a VMI's guest may take regardless of what its launcher reports; 0 means
// that there is no limit. It is twice the limit, because a transfer with a paused guest may take twice as long.
func MaxDuration(vmi *v1.VirtualMachineInstance, c *v1.VMIMConfigurationOptions) time.Duration {
	return 2 * Limit(MaxBytes(vmi), PerGiB(c))
}

// Limit returns how long the transfer of a number of bytes may take. 0 means that there is no limit.
func Limit(bytes uint64, perGiB time.Duration) time.Duration {
	n := max((bytes+gib-1)/gib, 1)
	if perGiB > 0 && n > uint64(math.MaxInt64/4/perGiB) {
		return math.MaxInt64 / 4
	}
	return perGiB * time.Duration(n)
}

// MaxBytes returns the maximum number of bytes of the transfer of a VMI's guest, according to its spec and its claims:
// memory, the disks in the Pod, and the volumes that migrate. Requested memory and storage, and claims, count in full.
func MaxBytes(vmi *v1.VirtualMachineInstance) uint64 {
	reserved, rest := split(memoryOf(vmi), requested(vmi, corev1.ResourceMemory, podspec.GuestMemory(vmi)))
	claims, inPod := disksOf(vmi)
	backed, beyond := split(inPod, requested(vmi, corev1.ResourceEphemeralStorage, resource.Quantity{}))
	return extraMemory + reserved + claims + backed + min(rest+beyond, maxUnreserved)
}

// split divides a size into the reserved part and the rest.
func split(size, reserved uint64) (backed, rest uint64) {
	backed = min(size, reserved)
	return backed, size - backed
}

// requested returns how much of a resource the VMI requests. A limit without a request counts as a request.
func requested(vmi *v1.VirtualMachineInstance, name corev1.ResourceName, otherwise resource.Quantity) uint64 {
	resources := &vmi.Spec.Domain.Resources
	for _, list := range []corev1.ResourceList{resources.Requests, resources.Limits} {
		if q, ok := list[name]; ok && q.Sign() > 0 {
			return bytesOf(q)
		}
	}
	return bytesOf(otherwise)
}

// memoryOf returns how much memory the guest has or is to have. What the agent reports counts up to the limit in the
// spec.
func memoryOf(vmi *v1.VirtualMachineInstance) uint64 {
	size := bytesOf(podspec.GuestMemory(vmi))
	if m, has := vmi.Spec.Domain.Memory, vmi.Status.Memory; m != nil && m.MaxGuest != nil && has != nil &&
		has.GuestCurrent != nil {
		size = max(size, min(bytesOf(*has.GuestCurrent), bytesOf(*m.MaxGuest)))
	}
	return size
}

// disksOf returns the sizes of the claims whose content is transferred, and of the disks in the Pod.
func disksOf(vmi *v1.VirtualMachineInstance) (claims, inPod uint64) {
	moved := map[string]*v1.StorageMigratedVolumeInfo{}
	for i := range vmi.Status.MigratedVolumes {
		moved[vmi.Status.MigratedVolumes[i].VolumeName] = &vmi.Status.MigratedVolumes[i]
	}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		m := moved[v.Name]
		switch {
		case m != nil:
			size, known := claimSize(m.SourcePVCInfo, m.DestinationPVCInfo)
			if !known {
				inPod += maxUnreserved
			}
			claims += size
		case v.EmptyDisk != nil:
			inPod += bytesOf(v.EmptyDisk.Capacity)
		case v.HostDisk != nil && v.HostDisk.Capacity.Sign() > 0:
			inPod += bytesOf(v.HostDisk.Capacity)
		case v.ContainerDisk != nil, v.HostDisk != nil, v.Ephemeral != nil:
			// The size of an image, or of the data that was written on top of it, is unknown.
			inPod += maxUnreserved
		}
	}
	return claims, inPod
}

// claimSize returns the largest capacity of the claims, and whether any is known. Requests beyond the capacity do not
// count.
func claimSize(claims ...*v1.PersistentVolumeClaimInfo) (size uint64, known bool) {
	for _, claim := range claims {
		if claim == nil {
			continue
		}
		capacity, ok := claim.Capacity[corev1.ResourceStorage]
		if ok {
			size, known = max(size, bytesOf(capacity)), true
		}
	}
	return size, known
}

// bytesOf returns a quantity in bytes, at most a pebibyte so that sums do not overflow.
func bytesOf(q resource.Quantity) uint64 {
	return uint64(min(max(q.Value(), 0), 1<<50))
}
