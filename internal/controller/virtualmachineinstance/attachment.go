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
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// actionAttach is the action of events about hotplugged volumes.
const actionAttach = "AttachVolume"

// changeGuest changes what a running guest has: its CPUs and memory, and its hotplugged volumes. A failure of one does
// not prevent the others.
func (s *scope) changeGuest(ctx context.Context) error {
	return errors.Join(s.requestNetworkChange(ctx), s.resizePod(ctx), s.reconcileAttachments(ctx))
}

// reconcileAttachments creates and deletes attachment Pods. One that fails prevents no other.
func (s *scope) reconcileAttachments(ctx context.Context) error {
	if !s.knowsPlugs() {
		return nil // The write that changed the launcher Pod triggers another reconciliation.
	}
	var errs []error
	kept := map[string]bool{}
	if s.keepsAttachments() {
		for _, p := range s.plugs {
			kept[podspec.AttachmentName(s.pod.UID, p.name)], kept[podspec.TriggerName(s.pod.UID, p.name)] = true, true
			errs = append(errs, s.reconcilePlug(ctx, p))
		}
	}
	if PodFate(s.otherPod) == protocol.PodAlive {
		for _, p := range s.plugs {
			kept[podspec.AttachmentName(s.otherPod.UID, p.name)] = true
			errs = append(errs, s.attachToTarget(ctx, p))
		}
	}
	// The other attachment Pods are those of volumes that are in neither spec nor status, of earlier launcher Pods, and
	// of a guest that has ended.
	for _, name := range slices.Sorted(maps.Keys(s.attachments)) {
		if !kept[name] {
			errs = append(errs, s.deleteAttachment(ctx, s.attachments[name]))
		}
	}
	return errors.Join(errs...)
}

// knowsPlugs reports whether the plugs were read for the guest's present launcher Pod. They were not if that Pod was
// just created, or if the guest has just migrated to it.
func (o *observed) knowsPlugs() bool {
	if o.pod == nil {
		return PodFate(o.otherPod) != protocol.PodAlive
	}
	return o.pod.UID == o.plugsOf
}

// keepsAttachments reports whether a guest uses the attachment Pods, or will.
func (s *scope) keepsAttachments() bool {
	return s.pod != nil && s.final == nil && s.stage() != vmistatus.Ended && !podstate.Finished(s.pod)
}

// mayAttach reports whether the launcher Pod has a node and is to stay, and whether its SELinux level is known, which
// an attachment Pod needs from the start. The agent reports it.
func (s *scope) mayAttach() bool {
	return s.pod.Spec.NodeName != "" && s.pod.DeletionTimestamp == nil && !s.deleting() &&
		s.vmi.Status.SelinuxContext != ""
}

// reconcilePlug does the next step for the Pods of a volume.
func (s *scope) reconcilePlug(ctx context.Context, p *plug) error {
	switch {
	case !p.wanted && p.controllerOwnsPhase(s.stage()):
		if p.pod != nil { // It may be wanted again at once.
			s.recreations.Reset(p.pod.Namespace + "/" + p.pod.Name)
		}
		return errors.Join(s.deleteAttachment(ctx, p.pod), s.deleteAttachment(ctx, p.trigger))
	case !p.wanted || !s.mayAttach():
		return nil // The agent detaches the volume first, or the guest is about to end.
	case p.pod != nil && podstate.Terminal(p.pod):
		return s.replaceAttachment(ctx, p.pod)
	case p.pod != nil:
		return s.deleteAttachment(ctx, p.trigger)
	case p.onlyTriggers():
		return s.reconcileTrigger(ctx, p)
	case p.isBlocked():
		return nil // A change of the claim or the DataVolume triggers another reconciliation.
	default:
		pod, err := s.createAttachment(ctx, p, s.pod, false)
		if pod != nil {
			p.pod = pod
		}
		return errors.Join(err, s.deleteAttachment(ctx, p.trigger))
	}
}

// reconcileTrigger creates the Pod for which the claim is bound and filled. One that failed is created again.
func (s *scope) reconcileTrigger(ctx context.Context, p *plug) error {
	switch {
	case p.trigger == nil && p.claim != nil:
		pod, err := s.createAttachment(ctx, p, s.pod, true)
		p.trigger = pod
		return err
	case p.trigger != nil && p.trigger.Status.Phase == corev1.PodFailed:
		return s.replaceAttachment(ctx, p.trigger)
	default:
		return nil
	}
}

// attachToTarget attaches a volume that the guest uses to the node to which the guest migrates. The target's agent
// finds the Pod by its name. When the target owns the guest, its launcher Pod is the VMI's, and the Pod that of the
// volume. The guest uses no utility volume.
func (s *scope) attachToTarget(ctx context.Context, p *plug) error {
	switch {
	case !p.wanted || p.utility || p.claim == nil || p.status == nil || !vmistatus.Migrating(&s.vmi.Status) ||
		s.deleting():
		return nil
	case s.vmi.Status.NodeName == s.vmi.Status.MigrationState.TargetNode: // The other Pod is the source's.
		return nil
	case s.otherPod.Spec.NodeName == "" || s.otherPod.DeletionTimestamp != nil:
		return nil
	case p.status.Phase != v1.HotplugVolumeMounted && p.status.Phase != v1.VolumeReady:
		return nil
	}
	pod := s.attachments[podspec.AttachmentName(s.otherPod.UID, p.name)]
	switch {
	case pod == nil:
		_, err := s.createAttachment(ctx, p, s.otherPod, false)
		return err
	case podstate.Terminal(pod):
		return s.replaceAttachment(ctx, pod)
	default:
		return nil
	}
}

// replaceAttachment deletes a Pod that has ended, as by an eviction, for another one to be created.
func (s *scope) replaceAttachment(ctx context.Context, pod *corev1.Pod) error {
	if wait := pod.CreationTimestamp.Add(binderPause).Sub(s.now); wait > 0 {
		s.requeueIn(wait)
		return nil
	}
	return s.deleteAttachment(ctx, pod)
}

// createAttachment creates the attachment Pod of a volume for a launcher Pod, or the Pod that gets its claim bound and
// filled. It returns nil if the Pod was deleted meanwhile, or has been created and deleted shortly before: a client
// that may delete Pods could have it created without end.
func (s *scope) createAttachment(
	ctx context.Context, p *plug, launcher *corev1.Pod, trigger bool,
) (*corev1.Pod, error) {
	name := podspec.AttachmentName(launcher.UID, p.name)
	if trigger {
		name = podspec.TriggerName(launcher.UID, p.name)
	}
	key := s.vmi.Namespace + "/" + name
	if s.recreations.IsInBackOffSinceUpdate(key, s.now) {
		s.requeueIn(s.recreations.Get(key))
		return nil, nil
	}
	ranges, err := kit.LimitRanges(ctx, s.apiReader, s.vmi.Namespace)
	if err != nil {
		return nil, err
	}
	pod := podspec.BuildAttachment(s.vmi, s.podConfig, podspec.Attachment{
		Volume: p.volume, Claim: p.claim, Launcher: launcher, Ranges: ranges, Files: p.utility, Trigger: trigger,
	})
	err = s.client.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		return s.findAttachment(ctx, pod.Name)
	}
	if err == nil {
		s.recreations.GC()
		s.recreations.Next(key, s.now)
		note := "Created attachment pod " + pod.Name
		if trigger {
			note = "Created hotplug trigger pod for volume " + p.name
		}
		s.event(corev1.EventTypeNormal, ReasonSuccessfulCreate, actionAttach, "%s", note)
	}
	if err != nil {
		p.failure = fmt.Sprintf("Error creating attachment pod: %v", err)
		if trigger {
			p.failure = fmt.Sprintf("Error creating hotplug population trigger pod for volume %s: %v", p.name, err)
		}
		return nil, fmt.Errorf("create attachment Pod %s of volume %s: %w", pod.Name, p.name, err)
	}
	return pod, nil
}

// findAttachment reads a Pod that exists although the cache does not have it. It returns nil for one that is gone
// meanwhile.
func (s *scope) findAttachment(ctx context.Context, name string) (*corev1.Pod, error) {
	pod, key := &corev1.Pod{}, client.ObjectKey{Namespace: s.vmi.Namespace, Name: name}
	if err := s.apiReader.Get(ctx, key, pod); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if !podspec.IsAttachmentOf(pod, s.vmi) {
		return nil, fmt.Errorf("pod %s %w", key, errForeignPod)
	}
	return pod, nil
}

func (s *scope) deleteAttachment(ctx context.Context, pod *corev1.Pod) error {
	if pod == nil || pod.DeletionTimestamp != nil {
		return nil
	}
	err := s.client.Delete(ctx, pod, client.Preconditions{UID: ptr.To(pod.UID)})
	switch {
	case err == nil:
		s.event(corev1.EventTypeNormal, ReasonSuccessfulDelete, actionAttach, "Deleted attachment pod %s", pod.Name)
	case !apierrors.IsNotFound(err):
		s.event(corev1.EventTypeWarning, ReasonFailedDelete, actionAttach, "Failed to delete attachment pod %s: %v", pod.Name,
			err)
		return fmt.Errorf("delete attachment Pod %s: %w", client.ObjectKeyFromObject(pod), err)
	}
	return nil
}
