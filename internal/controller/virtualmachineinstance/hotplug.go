// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// AttachmentIndex is the index of attachment Pods by the UID of the VMI that they are for.
const AttachmentIndex = "metadata.annotations.hotplug-vmi-uid"

// AttachmentOf returns the value of AttachmentIndex.
func AttachmentOf(pod *corev1.Pod) []string {
	if uid := podspec.AttachmentUser(pod); uid != "" {
		return []string{string(uid)}
	}
	return nil
}

// plug is a hotplugged volume: one that the guest is to have, or one that it still has. See
// internal/vmistatus/hotplug.go for the steps.
type plug struct {
	name string
	// volume is the volume in the VMI's spec, or nil. utility is true if QEMU writes files to it (a memory dump, a
	// backup) and the guest gets no disk.
	volume  *v1.Volume
	utility bool
	// status is the volume's status as it was read, or nil.
	status *v1.VolumeStatus
	// wanted reports whether the guest is to have it.
	wanted bool
	// claim is its claim, or nil.
	claim *corev1.PersistentVolumeClaim
	// dataVolume fills the claim, or is nil.
	dataVolume *cdi.DataVolume
	// pod attaches the claim to the node, trigger has it bound and filled. Each is nil if it does not exist.
	pod, trigger *corev1.Pod
	// failure is why pod or trigger could not be created.
	failure string
	// podProblem is why pod does not run, or nil.
	podProblem *problem
}

// readHotplug reads the hotplugged volumes, their claims and the attachment Pods.
func (s *scope) readHotplug(ctx context.Context) error {
	pods := &corev1.PodList{}
	err := s.client.List(ctx, pods, client.InNamespace(s.vmi.Namespace),
		client.MatchingFields{AttachmentIndex: string(s.vmi.UID)})
	if err != nil {
		return fmt.Errorf("list the attachment Pods of VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(s.vmi), err)
	}
	s.attachments = map[string]*corev1.Pod{}
	for i := range pods.Items {
		s.attachments[pods.Items[i].Name] = &pods.Items[i]
	}
	if s.pod != nil {
		s.plugsOf = s.pod.UID
	}
	if s.stage() == vmistatus.Ended || s.pod == nil {
		return nil
	}
	s.findPlugs()
	for _, p := range s.plugs {
		if p.volume == nil || !p.wanted {
			continue
		}
		if err := s.readPlug(ctx, p); err != nil {
			return err
		}
	}
	return s.readPlugOverheads(ctx)
}

// findPlugs finds the hotplugged volumes: those that the status has as such, those of the spec that the launcher Pod
// was made without, and the utility volumes.
func (s *scope) findPlugs() {
	plugs := map[string]*plug{}
	for i := range s.vmi.Status.VolumeStatus {
		if status := &s.vmi.Status.VolumeStatus[i]; vmistatus.IsHotplugged(status) {
			plugs[status.Name] = &plug{name: status.Name, status: status, wanted: vmistatus.IsWanted(s.vmi, status)}
		}
	}
	for i := range s.vmi.Spec.Volumes {
		volume := &s.vmi.Spec.Volumes[i]
		p := plugs[volume.Name]
		if p == nil && podspec.IsHotplugged(s.vmi, volume, s.podConfig) && !podspec.HasClaim(s.pod, volume.WrittenClaim()) {
			p = &plug{name: volume.Name, wanted: true}
			plugs[volume.Name] = p
		}
		if p != nil {
			p.volume = volume
		}
	}
	for i := range s.vmi.Spec.UtilityVolumes {
		u := &s.vmi.Spec.UtilityVolumes[i]
		if plugs[u.Name] == nil {
			plugs[u.Name] = &plug{name: u.Name, wanted: true}
		}
		claim := &v1.PersistentVolumeClaimVolumeSource{PersistentVolumeClaimVolumeSource: u.PersistentVolumeClaimVolumeSource,
			Hotpluggable: true}
		plugs[u.Name].volume = &v1.Volume{Name: u.Name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: claim}}
		plugs[u.Name].utility = true
	}
	for _, name := range slices.Sorted(maps.Keys(plugs)) {
		p := plugs[name]
		p.pod = s.attachments[podspec.AttachmentName(s.pod.UID, name)]
		p.trigger = s.attachments[podspec.TriggerName(s.pod.UID, name)]
		s.plugs = append(s.plugs, p)
	}
}

// isPlug reports whether a volume is hotplugged.
func (o *observed) isPlug(volume string) bool {
	return slices.ContainsFunc(o.plugs, func(p *plug) bool { return p.name == volume })
}

// readPlug reads the claim of a volume, the DataVolume that fills it, and why its attachment Pod does not run.
func (s *scope) readPlug(ctx context.Context, p *plug) error {
	var err error
	if p.claim, err = readClaim(ctx, s.client, s.vmi.Namespace, p.volume.WrittenClaim()); err != nil {
		return err
	}
	if p.claim != nil {
		s.keepClaim(p)
	}
	if name := dataVolumeName(p.volume, p.claim); name != "" {
		dv, err := s.importer.Get(ctx, client.ObjectKey{Namespace: s.vmi.Namespace, Name: name})
		if err != nil && !apierrors.IsNotFound(err) && !errors.Is(err, datavolume.ErrNotInstalled) {
			return err
		}
		p.dataVolume = dv
	}
	return s.readPlugProblem(ctx, p)
}

// keepClaim has the status report the claim's size.
func (s *scope) keepClaim(p *plug) {
	if s.claims == nil {
		s.claims = map[string]*corev1.PersistentVolumeClaim{}
	}
	s.claims[p.name] = p.claim
}

// readPlugProblem finds out why an attachment Pod does not run, if it has not done so for some time.
func (s *scope) readPlugProblem(ctx context.Context, p *plug) error {
	if p.pod == nil || p.pod.DeletionTimestamp != nil || podstate.Ready(p.pod) {
		return nil
	}
	if wait := p.pod.CreationTimestamp.Add(patience).Sub(s.now); wait > 0 {
		s.requeueIn(wait)
		return nil
	}
	if p.podProblem = podProblem(p.pod); p.podProblem != nil || !startsOnNode(p.pod) {
		return nil
	}
	failures, err := s.startFailures(ctx, p.pod)
	if err != nil || len(failures) == 0 {
		return err
	}
	var reported *v1.VirtualMachineInstanceCondition
	if p.status != nil {
		reported = &v1.VirtualMachineInstanceCondition{Reason: p.status.Reason, Message: p.status.Message}
	}
	p.podProblem = startProblem(p.pod, failures, reported)
	return nil
}

// readPlugOverheads reads the overheads of file systems if a claim is yet to be described in the status.
func (s *scope) readPlugOverheads(ctx context.Context) error {
	if s.stage() != vmistatus.Live {
		return nil // They are read when the VMI is assigned.
	}
	for _, p := range s.plugs {
		if p.claim != nil && !vmistatus.IsBlockClaim(p.claim) &&
			(p.status == nil || p.status.PersistentVolumeClaimInfo == nil) {
			overheads, err := ReadOverheads(ctx, s.apiReader, s.importer, client.ObjectKeyFromObject(p.claim))
			s.overheads = overheads
			return err
		}
	}
	return nil
}

// readVolumeAffinities reads on which nodes the hotpluggable volumes can be used. The scheduler does not know about
// them when it places the launcher Pod, which has no other part of them.
func (s *scope) readVolumeAffinities(ctx context.Context) error {
	if !s.preparing() || s.pod != nil || s.problem != nil {
		return nil
	}
	affinities, err := VolumeAffinities(ctx, s.client, s.apiReader, s.vmi, s.podConfig)
	s.podConfig.VolumeAffinities = affinities
	return err
}

// VolumeAffinities returns on which nodes the volumes of a VMI can be used that are not in its launcher Pod. claims
// reads claims, apiReader reads PersistentVolumes.
func VolumeAffinities(
	ctx context.Context, claims, apiReader client.Reader, vmi *v1.VirtualMachineInstance, config podspec.Config,
) ([]corev1.NodeSelector, error) {
	var out []corev1.NodeSelector
	for i := range vmi.Spec.Volumes {
		volume := &vmi.Spec.Volumes[i]
		if !podspec.IsHotplugged(vmi, volume, config) {
			continue
		}
		claim, err := readClaim(ctx, claims, vmi.Namespace, volume.WrittenClaim())
		if err != nil {
			return nil, err
		}
		if claim == nil || claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
			continue
		}
		pv := &corev1.PersistentVolume{}
		if err := apiReader.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, pv); err != nil {
			if apierrors.IsNotFound(err) {
				continue // The claim has lost it, which the status of the volume will show.
			}
			return nil, fmt.Errorf("get PersistentVolume %s of PersistentVolumeClaim %s: %w", claim.Spec.VolumeName,
				client.ObjectKeyFromObject(claim), err)
		}
		if pv.Spec.NodeAffinity != nil && pv.Spec.NodeAffinity.Required != nil {
			out = append(out, *pv.Spec.NodeAffinity.Required)
		}
	}
	return out, nil
}

// onlyTriggers reports whether the claim is bound and filled only after a Pod has used it, which must not be the
// attachment Pod.
func (p *plug) onlyTriggers() bool {
	return p.dataVolume != nil && p.dataVolume.DeletionTimestamp == nil && datavolume.WaitsForConsumer(p.dataVolume)
}

// obstacle returns the reason and the message why the claim cannot be attached yet, or "".
func (p *plug) obstacle() (reason, message string) {
	switch {
	case p.claim == nil:
		return ReasonPVCNotFound, fmt.Sprintf("PVC %s not found%s", p.volume.WrittenClaim(), p.importState())
	case p.claim.DeletionTimestamp != nil:
		return ReasonPVCNotReady, fmt.Sprintf("PVC %s is being deleted", p.claim.Name)
	case p.utility && vmistatus.IsBlockClaim(p.claim):
		return ReasonPVCNotReady,
			fmt.Sprintf("PVC %s has volumeMode Block, and no file system for the files of a backup or memory dump", p.claim.Name)
	case p.claim.Status.Phase == corev1.ClaimLost, p.dataVolume != nil && !datavolume.Usable(p.dataVolume):
		return ReasonPVCNotReady, claimPhase(p.claim) + p.importState()
	default:
		return "", ""
	}
}

// isBlocked reports whether the claim cannot be attached yet.
func (p *plug) isBlocked() bool {
	reason, _ := p.obstacle()
	return reason != ""
}

// claimPhase describes a claim as KubeVirt does. It has another name for the phase Pending.
func claimPhase(claim *corev1.PersistentVolumeClaim) string {
	phase := string(claim.Status.Phase)
	if phase == "" || phase == string(corev1.ClaimPending) {
		phase = "ClaimPending"
	}
	return "PVC is in phase " + phase
}

// importState describes how far the DataVolume is, or is empty.
func (p *plug) importState() string {
	if p.dataVolume == nil || datavolume.Usable(p.dataVolume) {
		return ""
	}
	out := fmt.Sprintf(", DataVolume %s is in phase %s", p.dataVolume.Name, p.dataVolume.Status.Phase)
	if why := datavolume.Problem(p.dataVolume); why != "" {
		out += ": " + cleanMessage(why)
	}
	return out
}

// controllerOwnsPhase reports whether virt-controller writes the phase: the volume was never reported as attached to
// the node, or the agent has unmounted it.
func (p *plug) controllerOwnsPhase(stage vmistatus.Stage) bool {
	if p.status == nil || stage != vmistatus.Live {
		return true
	}
	switch p.status.Phase {
	case v1.HotplugVolumeAttachedToNode, v1.HotplugVolumeMounted, v1.VolumeReady,
		v1.MemoryDumpVolumeInProgress, v1.MemoryDumpVolumeCompleted, v1.MemoryDumpVolumeFailed:
		return false
	default:
		return true
	}
}

// isAlive reports whether a Pod exists and will not end.
func isAlive(pod *corev1.Pod) bool {
	return pod != nil && pod.DeletionTimestamp == nil && !podstate.Terminal(pod)
}
