// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonPVCNotReady is the reason of a hotplugged volume whose claim is not attached yet. KubeVirt's name.
const ReasonPVCNotReady = "PVCNotReady"

// setHotplug reports the hotplugged volumes. It adds and removes them, and leaves the others as they are.
func setHotplug(o *observed, status *v1.VirtualMachineInstanceStatus) {
	if len(o.plugs) == 0 || !o.knowsPlugs() {
		return
	}
	list := slices.DeleteFunc(slices.Clone(status.VolumeStatus), func(v v1.VolumeStatus) bool { return o.isPlug(v.Name) })
	for _, p := range o.plugs {
		if volume := plugStatus(o, p); volume != nil {
			list = append(list, *volume)
		}
	}
	vmistatus.SortVolumes(list)
	status.VolumeStatus = list
}

// plugStatus returns the status of a hotplugged volume, or nil if nothing is left of the volume.
func plugStatus(o *observed, p *plug) *v1.VolumeStatus {
	out := &v1.VolumeStatus{Name: p.name}
	if p.status != nil {
		out = p.status.DeepCopy()
	}
	switch {
	case p.wanted:
		setAttachment(o, p, out)
		setPlugPhase(o, p, out)
		return out
	case !p.controllerOwnsPhase(o.stage()):
		return out
	case p.pod == nil && p.trigger == nil:
		return nil
	case out.Phase != v1.HotplugVolumeDetaching:
		pod := p.pod
		if pod == nil {
			pod = p.trigger
		}
		out.Phase, out.Reason = v1.HotplugVolumeDetaching, ReasonSuccessfulDelete
		out.Message = fmt.Sprintf("Deleted hotplug attachment pod %s, for volume %s", pod.Name, p.name)
	}
	return out
}

// setAttachment reports the claim and the attachment Pod. The Pod's UID, which allows the agent to mount the volume, is
// reported as soon as the Pod is ready and the size of the claim is known. It stays if the Pod's container is
// restarted, because the volume stays as well.
func setAttachment(o *observed, p *plug, out *v1.VolumeStatus) {
	if out.PersistentVolumeClaimInfo == nil && p.claim != nil {
		out.PersistentVolumeClaimInfo = ClaimInfo(p.claim, o.overheads)
	}
	before := out.HotplugVolume
	out.HotplugVolume = &v1.HotplugVolumeStatus{}
	if !isAlive(p.pod) {
		return
	}
	out.HotplugVolume.AttachPodName = p.pod.Name
	known := before != nil && before.AttachPodUID == p.pod.UID
	if known || podstate.Ready(p.pod) && p.claim != nil && len(p.claim.Status.Capacity) > 0 {
		out.HotplugVolume.AttachPodUID = p.pod.UID
	}
}

// setPlugPhase sets the phases up to AttachedToNode. The agent sets later phases, and reason and message while it
// mounts the volume.
func setPlugPhase(o *observed, p *plug, out *v1.VolumeStatus) {
	attached := out.Phase == v1.HotplugVolumeAttachedToNode
	if !attached && !p.controllerOwnsPhase(o.stage()) {
		return
	}
	switch {
	case attached && vmistatus.IsAttachedToNode(p.status) &&
		p.status.HotplugVolume.AttachPodUID == out.HotplugVolume.AttachPodUID:
	case isAlive(p.pod) && p.podProblem != nil && out.HotplugVolume.AttachPodUID == "":
		out.Phase, out.Reason, out.Message = v1.HotplugVolumeAttachedToNode, p.podProblem.reason, p.podProblem.message
	case isAlive(p.pod):
		out.Phase, out.Reason = v1.HotplugVolumeAttachedToNode, ReasonSuccessfulCreate
		out.Message = fmt.Sprintf("Created hotplug attachment pod %s, for volume %s", p.pod.Name, p.name)
	case attached && p.failure != "":
		out.Reason, out.Message = ReasonFailedCreate, p.failure
	case attached: // Another Pod will be created.
	default:
		setClaimPhase(p, out)
	}
}

// setClaimPhase sets the phase of a volume without an attachment Pod.
func setClaimPhase(p *plug, out *v1.VolumeStatus) {
	out.Phase = v1.VolumePending
	if p.claim != nil && p.claim.Status.Phase == corev1.ClaimBound {
		out.Phase = v1.VolumeBound
	}
	reason, message := p.obstacle()
	switch {
	case p.failure != "":
		out.Reason, out.Message = ReasonFailedCreate, p.failure
	case reason != "":
		out.Reason, out.Message = reason, message
	default:
		out.Reason, out.Message = ReasonPVCNotReady, claimPhase(p.claim)
	}
}

// hotplugSteps are the reasons of a volume's status while nothing is wrong. A user may have to act on any other.
var hotplugSteps = map[string]bool{ReasonPVCNotReady: true, ReasonSuccessfulCreate: true, ReasonSuccessfulDelete: true}

// recordHotplugEvents records the changes of hotplugged volumes that are virt-controller's. The agent records its own.
func (s *scope) recordHotplugEvents(before *v1.VirtualMachineInstanceStatus) {
	for i := range s.vmi.Status.VolumeStatus {
		after := &s.vmi.Status.VolumeStatus[i]
		if !vmistatus.IsHotplugged(after) {
			continue
		}
		was := vmistatus.FindVolume(before, after.Name)
		if was != nil && was.Phase == after.Phase && was.Reason == after.Reason && was.Message == after.Message {
			continue
		}
		kind := corev1.EventTypeWarning
		if hotplugSteps[after.Reason] {
			kind = corev1.EventTypeNormal
		}
		s.event(kind, after.Reason, actionAttach, "%s", after.Message)
	}
}
