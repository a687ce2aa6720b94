// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devices

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/jobs"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// SetVolumes sets the device name and the size of each volume. It keeps what virt-controller wrote about claims before
// it assigned the VMI.
func (s *Guest) SetVolumes(prepared *media.Result) {
	before := map[string]v1.VolumeStatus{}
	for _, v := range s.VMI.Status.VolumeStatus {
		before[v.Name] = v
	}
	list := make([]v1.VolumeStatus, 0, len(s.VMI.Spec.Volumes)+1)
	if state, found := stateClaim(s.VMI); found {
		list = append(list, state)
	}
	for i := range s.VMI.Status.VolumeStatus {
		// virt-controller adds hotplugged volumes, and removes them once the launcher Pod does not have them.
		if v := &s.VMI.Status.VolumeStatus[i]; vmistatus.IsHotplugged(v) {
			if isAttaching(v) {
				list = append(list, *v) // The guest may have it already, see mountEarly.
				continue
			}
			v.Target = s.DiskTarget(v.Name)
			if size := s.state.sizes.of(v.Target); size > 0 && size <= math.MaxInt64 {
				v.Size = int64(size)
			}
			list = append(list, *v)
		}
	}
	for i := range s.VMI.Spec.Volumes {
		if isHotplugged(s.VMI, s.Pod, &s.VMI.Spec.Volumes[i]) {
			continue
		}
		name := s.VMI.Spec.Volumes[i].Name
		status := before[name]
		status.Name = name
		if target := s.DiskTarget(name); target != "" {
			status.Target = target
		}
		switch size := s.state.sizes.of(status.Target); {
		case size > 0 && size <= math.MaxInt64:
			status.Size = int64(size)
		case prepared != nil && prepared.Disks[name].CapacityBytes > 0:
			status.Size = prepared.Disks[name].CapacityBytes
		}
		list = append(list, status)
	}
	vmistatus.SortVolumes(list)
	s.VMI.Status.VolumeStatus = list
}

// stateClaim returns what virt-controller wrote about the claim with the VM's persistent state, which is not a volume
// of the spec.
func stateClaim(vmi *v1.VirtualMachineInstance) (v1.VolumeStatus, bool) {
	if !vmi.Spec.HasPersistentState() {
		return v1.VolumeStatus{}, false
	}
	volumes := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		volumes[vmi.Spec.Volumes[i].Name] = true
	}
	for _, status := range vmi.Status.VolumeStatus {
		claim := status.PersistentVolumeClaimInfo
		if claim != nil && claim.ClaimName == status.Name && !volumes[status.Name] && !vmistatus.IsHotplugged(&status) {
			return status, true
		}
	}
	return v1.VolumeStatus{}, false
}

// reportPlugged sets the phases of the hotplugged volumes that are in the launcher Pod.
func (s *Guest) reportPlugged() {
	for i := range s.VMI.Status.VolumeStatus {
		v := &s.VMI.Status.VolumeStatus[i]
		if !vmistatus.IsHotplugged(v) || v.Phase != v1.HotplugVolumeMounted && v.Phase != v1.VolumeReady {
			continue
		}
		known, has := s.plugging(v.Name), s.pluggedDisk(v.Name) != nil
		switch wanted := vmistatus.IsWanted(s.VMI, v); {
		case wanted && has:
			v.Phase, v.Reason = v1.VolumeReady, ReasonVolumeReady
			v.Message = fmt.Sprintf("Successfully attach hotplugged volume %s to VM", v.Name)
			known.failure, known.next, known.detached = "", time.Time{}, time.Time{}
		case wanted && known.failure != "":
			v.Phase, v.Reason = v1.HotplugVolumeMounted, vmistatus.ReasonHotplugFailed
			v.Message = fmt.Sprintf("Volume %s could not be attached to the guest: %s", v.Name, known.failure)
		case wanted && known.mounted != "":
			v.Phase, v.Reason = v1.HotplugVolumeMounted, vmistatus.ReasonVolumeMounted
			v.Message = mountedMessage(v.Name)
			if s.jobs.DumpWaits(v) {
				v.Message = fmt.Sprintf("Memory dump Volume %s is attached, waiting for the backup of the guest to end", v.Name)
			}
		case !wanted && has &&
			(known.failure != "" || !known.detached.IsZero() && s.Now.Sub(known.detached) >= releasePatience):
			v.Reason = vmistatus.ReasonHotplugFailed
			v.Message = fmt.Sprintf("The guest has not released volume %s: unmount it in the guest", v.Name)
			if known.failure != "" {
				v.Message += " (" + known.failure + ")"
			}
		}
	}
}

// Events returns the events that follow from a change of the status of volumes.
func Events(before, after *v1.VirtualMachineInstanceStatus) []phase.Event {
	var events []phase.Event
	for i := range after.VolumeStatus {
		v := &after.VolumeStatus[i]
		known := vmistatus.FindVolume(before, v.Name)
		if !vmistatus.IsHotplugged(v) || known == nil || known.Reason == v.Reason {
			continue
		}
		if known.Phase == v1.HotplugVolumeAttachedToNode && v.Phase == v1.VolumeReady {
			events = append(events,
				phase.Event{Type: corev1.EventTypeNormal, Reason: vmistatus.ReasonVolumeMounted, Message: mountedMessage(v.Name)})
		}
		switch v.Reason {
		case vmistatus.ReasonVolumeMounted, ReasonVolumeReady:
			events = append(events, phase.Event{Type: corev1.EventTypeNormal, Reason: v.Reason, Message: v.Message})
		case ReasonVolumeUnmounted:
			if known.Phase == v1.VolumeReady {
				message := fmt.Sprintf("Volume %s has been unplugged", v.Name)
				events = append(events, phase.Event{Type: corev1.EventTypeNormal, Reason: ReasonVolumeUnplugged, Message: message})
			}
			events = append(events, phase.Event{Type: corev1.EventTypeNormal, Reason: v.Reason, Message: v.Message})
		case jobs.ReasonDumpInProgress, jobs.ReasonDumpCompleted:
			events = append(events, phase.Event{Type: corev1.EventTypeNormal, Reason: v.Reason, Message: v.Message})
		case vmistatus.ReasonHotplugFailed, jobs.ReasonDumpFailed:
			events = append(events, phase.Event{Type: corev1.EventTypeWarning, Reason: v.Reason, Message: v.Message})
		}
	}
	return events
}
