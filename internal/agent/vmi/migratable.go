// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// obstacle is something that ties a guest to its node.
type obstacle struct {
	reason, message string
	// storage reports whether migrating the volumes along would remove it.
	storage bool
}

// setMigratable sets the conditions whether the guest can migrate, without and with its volumes, and the migration
// method.
func setMigratable(vmi *v1.VirtualMachineInstance, now metav1.Time) {
	all := slices.Concat(volumeObstacles(vmi), deviceObstacles(vmi))
	beyondStorage := slices.DeleteFunc(slices.Clone(all), func(o obstacle) bool { return o.storage })
	migratable := migratableCondition(v1.VirtualMachineInstanceIsMigratable, all)
	if migratable.Status == corev1.ConditionTrue {
		migratable.Message = addressesAfterMigration(vmi)
	}
	vmistatus.SetCondition(&vmi.Status, migratable, now)
	vmistatus.SetCondition(&vmi.Status,
		migratableCondition(v1.VirtualMachineInstanceIsStorageLiveMigratable, beyondStorage), now)
	vmi.Status.MigrationMethod = v1.LiveMigration
	if copiesDisks(vmi) || vmistatus.MovesVolumes(&vmi.Status) {
		vmi.Status.MigrationMethod = v1.BlockMigration
	}
}

func migratableCondition(
	kind v1.VirtualMachineInstanceConditionType, obstacles []obstacle,
) v1.VirtualMachineInstanceCondition {
	condition := v1.VirtualMachineInstanceCondition{Type: kind, Status: corev1.ConditionTrue}
	if len(obstacles) == 0 {
		return condition
	}
	condition.Status, condition.Reason = corev1.ConditionFalse, obstacles[0].reason
	messages := make([]string, 0, len(obstacles))
	for _, o := range obstacles {
		messages = append(messages, o.message)
		if o.reason != condition.Reason {
			condition.Reason = v1.VirtualMachineInstanceReasonNotMigratable
		}
	}
	condition.Message = "cannot migrate VMI: " + strings.Join(messages, "; ")
	return condition
}

// volumeObstacles returns the volumes that another node cannot access.
func volumeObstacles(vmi *v1.VirtualMachineInstance) []obstacle {
	var found []obstacle
	add := func(format string, args ...any) {
		found = append(found, obstacle{
			reason: v1.VirtualMachineInstanceReasonDisksNotMigratable, message: fmt.Sprintf(format, args...), storage: true,
		})
	}
	for i := range vmi.Spec.Volumes {
		switch v := &vmi.Spec.Volumes[i]; {
		case isYetToBePlugged(vmi, v):
		case v.PersistentVolumeClaim != nil, v.DataVolume != nil:
			if claim, shared := sharedClaim(vmi, v.Name); !shared && vmistatus.Migrated(&vmi.Status, v.Name) == nil {
				add("claim %s of volume %s is not shared, it needs access mode ReadWriteMany", claim, v.Name)
			}
		case v.HostDisk != nil && (v.HostDisk.Shared == nil || !*v.HostDisk.Shared):
			add("volume %s is a file of its node", v.Name)
		}
	}
	if len(vmi.Spec.Domain.Devices.Filesystems) > 0 {
		found = append(found, obstacle{
			reason: v1.VirtualMachineInstanceReasonVirtIOFSNotMigratable, message: "a file system is shared with the guest",
		})
	}
	return found
}

// isYetToBePlugged reports whether a volume is to be plugged and virt-controller has not described its claim in the
// status yet. The guest does not have it, and would migrate without it. Once the claim is described, its access modes
// decide.
func isYetToBePlugged(vmi *v1.VirtualMachineInstance, volume *v1.Volume) bool {
	status := vmistatus.FindVolume(&vmi.Status, volume.Name)
	if status == nil {
		return volume.IsHotpluggable()
	}
	return vmistatus.IsHotplugged(status) && status.PersistentVolumeClaimInfo == nil
}

func sharedClaim(vmi *v1.VirtualMachineInstance, volume string) (claim string, shared bool) {
	for _, s := range vmi.Status.VolumeStatus {
		if s.Name == volume && s.PersistentVolumeClaimInfo != nil {
			info := s.PersistentVolumeClaimInfo
			return info.ClaimName, slices.Contains(info.AccessModes, corev1.ReadWriteMany)
		}
	}
	return "", false
}

// deviceObstacles returns the devices that exist only on this node.
func deviceObstacles(vmi *v1.VirtualMachineInstance) []obstacle {
	var found []obstacle
	add := func(reason, message string) { found = append(found, obstacle{reason: reason, message: message}) }
	_, allowed := vmi.Annotations[v1.AllowPodBridgeNetworkLiveMigrationAnnotation]
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		iface := &vmi.Spec.Domain.Devices.Interfaces[i]
		if iface.Bridge != nil && onPodNetwork(vmi, iface.Name) && !allowed {
			add(v1.VirtualMachineInstanceReasonInterfaceNotMigratable,
				fmt.Sprintf("interface %s has the Pod's address by its bridge binding, which cannot move", iface.Name))
		}
	}
	if len(vmi.Spec.Domain.Devices.HostDevices)+len(vmi.Spec.Domain.Devices.GPUs) > 0 {
		add(v1.VirtualMachineInstanceReasonHostDeviceNotMigratable, "a device of the node is passed through")
	}
	if reason := countsOnTSC(&vmi.Spec.Domain); reason != "" && !hasCommonTSC(vmi) {
		add(v1.VirtualMachineInstanceReasonNoTSCFrequencyMigratable,
			reason+" and no time stamp counter frequency is known that other nodes offer too")
	}
	if f := vmi.Spec.Domain.Features; f != nil && f.HypervPassthrough != nil &&
		(f.HypervPassthrough.Enabled == nil || *f.HypervPassthrough.Enabled) {
		add(v1.VirtualMachineInstanceReasonHypervPassthroughNotMigratable,
			"the node's Hyper-V enlightenments are passed through")
	}
	return found
}

// countsOnTSC explains why a guest depends on a constant frequency of its time stamp counter; empty if it does not.
// Source: kubevirt/kubevirt pkg/virt-controller/watch/topology, GetTscFrequencyRequirement.
func countsOnTSC(spec *v1.DomainSpec) string {
	if spec.CPU != nil {
		for _, f := range spec.CPU.Features {
			if f.Name == "invtsc" && (f.Policy == "" || f.Policy == "require" || f.Policy == "force") {
				return "the CPU has the feature invtsc"
			}
		}
	}
	if f := spec.Features; f != nil && f.Hyperv != nil && f.Hyperv.Reenlightenment != nil &&
		(f.Hyperv.Reenlightenment.Enabled == nil || *f.Hyperv.Reenlightenment.Enabled) {
		return "the guest is notified of frequencies (features.hyperv.reenlightenment)"
	}
	return ""
}

func hasCommonTSC(vmi *v1.VirtualMachineInstance) bool {
	hints := vmi.Status.TopologyHints
	return hints != nil && hints.TSCFrequency != nil && *hints.TSCFrequency > 0
}

// copiesDisks reports whether a migration copies disks: every writable disk that is not on a claim is in the Pod.
func copiesDisks(vmi *v1.VirtualMachineInstance) bool {
	readOnly := map[string]bool{}
	for i := range vmi.Spec.Domain.Devices.Disks {
		d := &vmi.Spec.Domain.Devices.Disks[i]
		readOnly[d.Name] = d.CDRom != nil && (d.CDRom.ReadOnly == nil || *d.CDRom.ReadOnly) ||
			d.Disk != nil && d.Disk.ReadOnly
	}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		if v.PersistentVolumeClaim == nil && v.DataVolume == nil && v.HostDisk == nil && !readOnly[v.Name] {
			return true
		}
	}
	return false
}

// addressesAfterMigration describes for each interface whether the guest keeps its address in a migration.
func addressesAfterMigration(vmi *v1.VirtualMachineInstance) string {
	interfaces := vmi.Spec.Domain.Devices.Interfaces
	descriptions := make([]string, 0, len(interfaces))
	for i := range interfaces {
		descriptions = append(descriptions, "interface "+interfaces[i].Name+" "+addressAfterMigration(vmi, &interfaces[i]))
	}
	return strings.Join(descriptions, "; ")
}

func addressAfterMigration(vmi *v1.VirtualMachineInstance, iface *v1.Interface) string {
	switch {
	case !onPodNetwork(vmi, iface.Name):
		return "keeps its address"
	case iface.Bridge != nil:
		return "gets the address of the new Pod, once the guest requests one again"
	default:
		return "keeps its address inside the guest; from outside, that of the new Pod leads to it"
	}
}
