// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/jobs"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// A hotplugged volume is in an attachment Pod, which virt-controller creates. Its state is described in package vmistatus. The agent's
// part is to mount it in the launcher Pod, to attach its disk to the guest, and the reverse. All of it follows from the spec, the status,
// the attachment Pods and the running domain, so a new agent continues where an earlier one has stopped.

// Reasons of the status of a hotplugged volume, and of the events about it, beside those in package vmistatus. KubeVirt's.
const (
	// ReasonVolumeReady: the guest has it.
	ReasonVolumeReady = "VolumeReady"
	// ReasonVolumeUnplugged: the guest has released it. Only an event has this reason.
	ReasonVolumeUnplugged = "VolumeUnplugged"
	// ReasonVolumeUnmounted: it is not in the launcher Pod any more.
	ReasonVolumeUnmounted = "VolumeUnMountedFromPod"
	// ReasonHotplugVolume is the reason of the condition Synchronized if a volume cannot be mounted in the launcher Pod or unmounted.
	ReasonHotplugVolume = "HotPlugVolumeError"
)

const (
	// mountTimeout bounds a request to mount or unmount a volume. The broker continues after that, and a later request returns the result.
	mountTimeout = 10 * time.Second
	// plugRetry is the delay before a guest is requested again to release a disk, and before a volume without an image is tried again.
	plugRetry = 15 * time.Second
	// imageRetry is that delay for a disk image that does not exist, for as long as the attachment Pod may be about to create it. The Pod is
	// ready as soon as its container runs.
	imageRetry    = time.Second
	imagePatience = 10 * time.Second
	// releasePatience is how long a guest may take to release a disk before the status reports that it has not.
	releasePatience = 5 * time.Second
)

// diskPlugger changes the disks of a running guest.
type diskPlugger interface {
	phase.DomainReader
	diskMeter
	// ChangeDisk attaches, detaches or changes a disk of a running guest. A guest may release a detached disk later, or not at all.
	ChangeDisk(ctx context.Context, domain string, operation domain.Operation) error
}

// plugging is what the agent knows about a hotplugged volume.
type plugging struct {
	// mounted is the UID of the attachment Pod whose volume is in the launcher Pod.
	mounted types.UID
	// maybe is the UID of the attachment Pod whose volume may be there, because a request to mount or unmount it got no
	// response.
	maybe types.UID
	// directIO reports whether its file can be opened with O_DIRECT; nil if that is not known yet.
	directIO *bool
	// failure is why the guest does not have it, or still has it.
	failure string
	// noImage is since when its disk image does not exist, or zero.
	noImage time.Time
	// detached is when the guest was first requested to release it.
	detached time.Time
	// next is when the next attempt is due.
	next time.Time
}

// pluggings are what is known about the hotplugged volumes, by their name.
type pluggings struct{ byVolume map[string]*plugging }

// plugging returns what is known about a volume.
func (s *scope) plugging(volume string) *plugging {
	known := &s.cache.pluggings
	if known.byVolume == nil {
		known.byVolume = map[string]*plugging{}
	}
	if known.byVolume[volume] == nil {
		known.byVolume[volume] = &plugging{}
	}
	return known.byVolume[volume]
}

// isMounted reports whether a hotplugged volume is in the launcher Pod.
func (s *scope) isMounted(volume string) bool { return s.plugging(volume).mounted != "" }

// forgetPlugged forgets what is known about volumes that are not in the status any more: others may get their names.
func (s *scope) forgetPlugged() {
	maps.DeleteFunc(s.cache.pluggings.byVolume, func(volume string, _ *plugging) bool {
		return vmistatus.FindVolume(&s.VMI.Status, volume) == nil
	})
	s.cache.growths.forgetOthers(&s.VMI.Status)
}

// isHotplugged reports whether a volume of the spec is not in the launcher Pod from its start.
func isHotplugged(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, v *v1.Volume) bool {
	if vmistatus.IsHotplugged(vmistatus.FindVolume(&vmi.Status, v.Name)) {
		return true
	}
	return v.IsHotpluggable() && !podspec.HasClaim(pod, v.WrittenClaim()) && vmistatus.Migrated(&vmi.Status, v.Name) == nil
}

// isUtility reports whether a volume of the spec is for files of QEMU's, and for no disk of the guest.
func isUtility(vmi *v1.VirtualMachineInstance, volume string) bool {
	return vmistatus.FindUtility(&vmi.Spec, volume) != nil
}

// withoutHotplugged returns a VMI without its hotplugged volumes.
func withoutHotplugged(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) *v1.VirtualMachineInstance {
	rest := *vmi
	rest.Spec.Volumes = nil
	for i := range vmi.Spec.Volumes {
		if !isHotplugged(vmi, pod, &vmi.Spec.Volumes[i]) {
			rest.Spec.Volumes = append(rest.Spec.Volumes, vmi.Spec.Volumes[i])
		}
	}
	return &rest
}

// plugBeforeStart mounts the hotplugged volumes of a guest that is to be started, and waits for those that are not on the node yet: the
// guest gets all its disks at its start, in the order of the spec.
func (r *Reconciler) plugBeforeStart(ctx context.Context, s *scope) error {
	if !s.Assigned || !s.mayStart() || s.disks == nil {
		return nil
	}
	if err := errors.Join(r.mountVolumes(ctx, s), r.unmountVolumes(ctx, s)); err != nil {
		return notMounted(err)
	}
	for i := range s.VMI.Spec.Volumes {
		v := &s.VMI.Spec.Volumes[i]
		if isHotplugged(s.VMI, s.Pod, v) && s.plugging(v.Name).mounted == "" {
			return &outcome.Wait{Reason: fmt.Sprintf("the hotplugged volume %s to be attached to the node", v.Name)}
		}
	}
	s.addPlugged(s.VMI)
	return nil
}

// addPlugged adds the hotplugged volumes that are in the launcher Pod to the prepared ones.
func (s *scope) addPlugged(vmi *v1.VirtualMachineInstance) {
	if s.disks == nil {
		return
	}
	// What is in the cache does not change.
	disks := *s.disks
	disks.Disks = maps.Clone(s.disks.Disks)
	maps.Copy(disks.Disks, s.pluggedFacts(vmi))
	s.disks = &disks
}

// plugOnTarget mounts in the target's Pod the hotplugged volumes of a guest that is to be received. The Pod has attachment Pods of its own,
// whose names are known.
func (r *Reconciler) plugOnTarget(ctx context.Context, s *scope) error {
	for i := range s.Incoming.Status.VolumeStatus {
		v := &s.Incoming.Status.VolumeStatus[i]
		if !vmistatus.IsHotplugged(v) || !vmistatus.IsWanted(s.Incoming, v) || v.PersistentVolumeClaimInfo == nil ||
			v.Phase != v1.HotplugVolumeMounted && v.Phase != v1.VolumeReady || s.plugging(v.Name).mounted != "" || isUtility(s.Incoming, v.Name) {
			continue
		}
		pod, err := r.attachmentPod(ctx, s, s.Incoming, v.Name)
		if err != nil {
			return err
		}
		if pod == nil || !isReady(pod) {
			return &outcome.Wait{Reason: fmt.Sprintf("the attachment Pod of volume %s", v.Name)}
		}
		err = r.mountVolume(ctx, s, v, pod.UID)
		if s.plugging(v.Name).awaitsImage(err, s.Now) {
			return &outcome.Requeue{After: imageRetry}
		}
		if err != nil {
			return notMounted(err)
		}
	}
	s.addPlugged(s.Incoming)
	return nil
}

// attachmentPod returns the attachment Pod of a volume for the launcher Pod, or nil if it is not on this node or is
// being deleted. An event follows when it is there, and when it is ready.
func (r *Reconciler) attachmentPod(ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance, volume string) (*corev1.Pod, error) {
	pod, key := &corev1.Pod{}, client.ObjectKey{Namespace: s.Key.Namespace, Name: launcherpod.AttachmentPod(string(s.Pod.UID), volume)}
	switch err := r.Client.Get(ctx, key, pod); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read attachment Pod %s: %w", key, err)
	case !podspec.IsAttachmentOf(pod, vmi) || pod.Spec.NodeName != r.Node || pod.DeletionTimestamp != nil:
		return nil, nil
	default:
		return pod, nil
	}
}

// plugVolumes plugs the hotplugged volumes of a running guest's spec, and unplugs the others.
func (r *Reconciler) plugVolumes(ctx context.Context, s *scope, guest diskPlugger) error {
	if !s.Assigned || s.VMI.DeletionTimestamp != nil || s.Pod.DeletionTimestamp != nil || !s.Domain.Active() || s.Domain.Transient() ||
		vmistatus.Migrating(&s.VMI.Status) || !s.hotplugs() {
		return nil
	}
	s.forgetPlugged()
	r.mountEarly(ctx, s)
	mounting := r.mountVolumes(ctx, s)
	invalid, err := r.changeDisks(ctx, s, guest)
	if err != nil {
		return phase.FromConnection(err)
	}
	if !s.Domain.Active() {
		return nil // It has ended meanwhile.
	}
	unmounting := r.unmountVolumes(ctx, s)
	s.reportPlugged()
	if invalid != nil {
		return &outcome.Terminal{Reason: ReasonHotplugVolume, Err: invalid}
	}
	return notMounted(errors.Join(mounting, unmounting))
}

// hotplugs reports whether the guest has hotplugged volumes, or is to have some.
func (s *scope) hotplugs() bool {
	for i := range s.VMI.Status.VolumeStatus {
		if vmistatus.IsHotplugged(&s.VMI.Status.VolumeStatus[i]) {
			return true
		}
	}
	for i := range s.Domain.XML.Devices.Disks {
		if domain.IsPlugged(&s.Domain.XML.Devices.Disks[i]) {
			return true
		}
	}
	return false
}

// mountVolumes mounts in the launcher Pod the volumes that are wanted and on the node.
func (r *Reconciler) mountVolumes(ctx context.Context, s *scope) error {
	var errs []error
	for i := range s.VMI.Status.VolumeStatus {
		v := &s.VMI.Status.VolumeStatus[i]
		if !vmistatus.IsAttachedToNode(v) || !vmistatus.IsWanted(s.VMI, v) || v.PersistentVolumeClaimInfo == nil {
			continue
		}
		err := r.mountVolume(ctx, s, v, v.HotplugVolume.AttachPodUID)
		if err != nil && s.pluggedDisk(v.Name) != nil {
			// The guest has it. After a migration, the attachment Pod may still be the source's.
			log.FromContext(ctx).V(2).Info("A volume that the guest uses cannot be mounted again yet", "volume", v.Name, "error", err.Error())
			s.RequeueAfter(plugRetry)
			continue
		}
		if s.plugging(v.Name).awaitsImage(err, s.Now) {
			s.RequeueAfter(imageRetry)
			continue
		}
		if err != nil {
			reportFailure(v, err)
			errs = append(errs, err)
			continue
		}
		if v.Phase == v1.HotplugVolumeAttachedToNode {
			v.Phase, v.Reason = v1.HotplugVolumeMounted, vmistatus.ReasonVolumeMounted
			v.Message = mountedMessage(v.Name)
		}
	}
	return errors.Join(errs...)
}

// reportFailure reports why a volume cannot be mounted in the launcher Pod or unmounted.
func reportFailure(v *v1.VolumeStatus, err error) {
	v.Reason, v.Message = vmistatus.ReasonHotplugFailed, hypervisor.CleanLine("Cannot "+err.Error(), phase.MaxMessage)
}

// mountVolume mounts the volume of an attachment Pod, unless that was done.
func (r *Reconciler) mountVolume(ctx context.Context, s *scope, v *v1.VolumeStatus, attachment types.UID) error {
	known := s.plugging(v.Name)
	if known.mounted == attachment {
		return nil
	}
	act := fmt.Sprintf("mount %s of %s", v.Name, attachment)
	if err := s.AwaitAttempt(act); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, mountTimeout)
	defer cancel()
	var err error
	// The target of a migration, which has no VMI of its own yet, gets no utility volumes.
	if files := r.Files(s.Pod.UID); s.VMI != nil && isUtility(s.VMI, v.Name) {
		err = files.AttachDirectory(ctx, v.Name, attachment)
	} else {
		err = files.AttachVolume(ctx, v.Name, attachment, vmistatus.IsBlock(v.PersistentVolumeClaimInfo))
	}
	if err != nil {
		err = fmt.Errorf("mount volume %s in the launcher Pod: %w", v.Name, err)
		if errors.Is(err, fs.ErrNotExist) {
			return err // The caller knows for how long it may be missing.
		}
		return s.Attempted(act, ReasonHotplugVolume, err)
	}
	*known = plugging{mounted: attachment}
	return s.Attempted(act, ReasonHotplugVolume, nil)
}

// awaitsImage reports whether a volume could not be mounted because its attachment Pod has not created the disk image yet. After some time,
// that is a failure like any other.
func (p *plugging) awaitsImage(err error, now time.Time) bool {
	if !errors.Is(err, fs.ErrNotExist) {
		p.noImage = time.Time{}
		return false
	}
	if p.noImage.IsZero() {
		p.noImage = now
	}
	return now.Sub(p.noImage) < imagePatience
}

func mountedMessage(volume string) string {
	return fmt.Sprintf("Volume %s has been mounted in virt-launcher pod", volume)
}

// notMounted makes errors about the mounts of volumes a condition, and retries.
func notMounted(err error) error {
	return outcome.Map(err, func(err error) error {
		var retry *outcome.Retry
		if errors.As(err, &retry) {
			return err
		}
		return &outcome.Retry{Reason: ReasonHotplugVolume, After: plugRetry, Err: err}
	})
}

// pluggedFacts returns the facts about the volumes that are wanted and in the launcher Pod.
func (s *scope) pluggedFacts(vmi *v1.VirtualMachineInstance) map[string]domain.DiskFact {
	disks := map[string]domain.DiskFact{}
	for i := range vmi.Status.VolumeStatus {
		v := &vmi.Status.VolumeStatus[i]
		if !vmistatus.IsHotplugged(v) || !vmistatus.IsWanted(vmi, v) || isUtility(vmi, v.Name) ||
			s.plugging(v.Name).mounted == "" || v.PersistentVolumeClaimInfo == nil {
			continue
		}
		block := vmistatus.IsBlock(v.PersistentVolumeClaimInfo)
		disks[v.Name] = domain.DiskFact{
			Path: launcherpod.HotplugDisk(v.Name, block), Block: block, Format: hypervisor.FormatRaw, DirectIO: block,
			CapacityBytes: int64(media.DiskBytes(v.PersistentVolumeClaimInfo)), KeepsSpace: v.PersistentVolumeClaimInfo.Preallocated,
		}
	}
	return disks
}

// changeDisks changes the disks of a running guest. The first error is about disks of the spec that cannot be plugged, the other one about
// the connection. What libvirt refuses is in the status of the volume.
func (r *Reconciler) changeDisks(ctx context.Context, s *scope, guest diskPlugger) (invalid, err error) {
	collected, err := r.inspectPlugged(ctx, s)
	if err != nil {
		return nil, err
	}
	desired, invalid := domain.PluggedDisks(s.VMI, collected)
	changed := false
	for _, operation := range domain.DiffDisks(desired, s.Domain.XML, collected.Unplugged) {
		known := s.plugging(operation.Name)
		if s.Now.Before(known.next) || s.AwaitAttempt(changeAct(operation)) != nil {
			continue
		}
		changed = true
		err := guest.ChangeDisk(ctx, s.DomainName(), operation)
		if errors.Is(err, hypervisor.ErrUnreachable) {
			return invalid, err
		}
		known.attempted(operation, s.Attempted(changeAct(operation), ReasonHotplugVolume, err), s.Now)
	}
	if changed {
		if err := s.ReadDomain(ctx, guest); err != nil || !s.Domain.Active() {
			return invalid, err
		}
		s.cache.sizes.forget()
		measureDisks(ctx, s, guest)
	}
	for _, operation := range domain.DiffDisks(desired, s.Domain.XML, collected.Unplugged) {
		s.RequeueAfter(s.plugging(operation.Name).next.Sub(s.Now))
		s.RequeueForAttempt(changeAct(operation))
	}
	return invalid, nil
}

// changeAct is the name of the act of changing a disk.
func changeAct(operation domain.Operation) string {
	return fmt.Sprintf("change disk %s: %v", operation.Name, operation.Action)
}

// attempted records an attempt to change a disk. If it has succeeded, the next one follows if the domain has not changed by then.
func (p *plugging) attempted(operation domain.Operation, err error, now time.Time) {
	p.failure, p.next = "", now.Add(plugRetry)
	if operation.Action == domain.Detach && p.detached.IsZero() {
		p.detached, p.next = now, now.Add(releasePatience)
	}
	if err != nil {
		p.failure, p.next = hypervisor.CleanLine(err.Error(), phase.MaxMessage), time.Time{}
	}
}

// inspectPlugged returns the facts by which the disks of the spec on hotplugged volumes are built.
func (r *Reconciler) inspectPlugged(ctx context.Context, s *scope) (domain.Facts, error) {
	collected := domain.Facts{Disks: s.pluggedFacts(s.VMI)}
	files := r.Files(s.Pod.UID)
	for name, disk := range collected.Disks {
		known := s.plugging(name)
		if known.directIO == nil && !disk.Block {
			can, err := files.DirectIO(ctx, disk.Path)
			if err != nil {
				return collected, fmt.Errorf("inspect the launcher Pod: %w", err)
			}
			known.directIO = &can
		}
		disk.DirectIO = disk.Block || *known.directIO
		collected.Disks[name] = disk
	}
	if err := facts.AddBlockSizes(ctx, s.VMI, files, collected.Disks); err != nil {
		return collected, fmt.Errorf("inspect the launcher Pod: %w", err)
	}
	collected.Unplugged = unplugged(s.VMI, s.Pod, collected.Disks)
	return collected, nil
}

// unplugged returns the names of the hotplugged volumes that are wanted and not among the disks.
func unplugged(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, disks map[string]domain.DiskFact) map[string]bool {
	missing := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		status := vmistatus.FindVolume(&vmi.Status, v.Name)
		if _, known := disks[v.Name]; !known && isHotplugged(vmi, pod, v) && (status == nil || vmistatus.IsWanted(vmi, status)) {
			missing[v.Name] = true
		}
	}
	return missing
}

// unmountVolumes unmounts the volumes that are not wanted, once the guest has released them and QEMU writes no backup to them.
func (r *Reconciler) unmountVolumes(ctx context.Context, s *scope) error {
	var errs []error
	for i := range s.VMI.Status.VolumeStatus {
		v := &s.VMI.Status.VolumeStatus[i]
		if !vmistatus.IsHotplugged(v) || vmistatus.IsWanted(s.VMI, v) || s.pluggedDisk(v.Name) != nil || s.jobs.BacksUpTo(v.Name) {
			continue
		}
		switch v.Phase {
		case v1.HotplugVolumeAttachedToNode, v1.HotplugVolumeMounted, v1.VolumeReady, v1.MemoryDumpVolumeCompleted, v1.MemoryDumpVolumeFailed:
		default:
			continue
		}
		known := s.plugging(v.Name)
		attachment := cmp.Or(v.HotplugVolume.AttachPodUID, known.mounted, known.maybe)
		err := s.Attempt(fmt.Sprintf("unmount %s of %s", v.Name, attachment), ReasonHotplugVolume, func() error {
			// After a failure, the volume may be there or not. So it is mounted again if it is wanted again.
			known.mounted, known.maybe = "", attachment
			bounded, cancel := context.WithTimeout(ctx, mountTimeout)
			defer cancel()
			err := r.Files(s.Pod.UID).DetachVolume(bounded, v.Name, attachment, vmistatus.IsBlock(v.PersistentVolumeClaimInfo))
			if err != nil {
				return fmt.Errorf("take volume %s from the launcher Pod: %w", v.Name, err)
			}
			return nil
		})
		if err != nil {
			if !isAttaching(v) { // Until then, virt-controller owns its reason and message.
				reportFailure(v, err)
			}
			errs = append(errs, err)
			continue
		}
		delete(s.cache.pluggings.byVolume, v.Name)
		v.Phase, v.Reason, v.Target = v1.HotplugVolumeUnMounted, ReasonVolumeUnmounted, ""
		v.Message = fmt.Sprintf("Volume %s has been unmounted from virt-launcher pod", v.Name)
	}
	return errors.Join(errs...)
}

// pluggedDisk returns the disk of the running domain whose medium is a hotplugged volume, or nil.
func (s *scope) pluggedDisk(volume string) *libvirtxml.DomainDisk {
	if !s.Domain.Active() {
		return nil
	}
	if disk := domain.FindDisk(s.Domain.XML, domain.DiskAlias(volume)); disk != nil && domain.IsPlugged(disk) {
		return disk
	}
	return nil
}

// reportPlugged sets the phases of the hotplugged volumes that are in the launcher Pod.
func (s *scope) reportPlugged() {
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
		case !wanted && has && (known.failure != "" || !known.detached.IsZero() && s.Now.Sub(known.detached) >= releasePatience):
			v.Reason = vmistatus.ReasonHotplugFailed
			v.Message = fmt.Sprintf("The guest has not released volume %s: unmount it in the guest", v.Name)
			if known.failure != "" {
				v.Message += " (" + known.failure + ")"
			}
		}
	}
}

// hotplugEvents returns the events that follow from a change of the status of volumes.
func hotplugEvents(before, after *v1.VirtualMachineInstanceStatus) []phase.Event {
	var events []phase.Event
	for i := range after.VolumeStatus {
		v := &after.VolumeStatus[i]
		known := vmistatus.FindVolume(before, v.Name)
		if !vmistatus.IsHotplugged(v) || known == nil || known.Reason == v.Reason {
			continue
		}
		if known.Phase == v1.HotplugVolumeAttachedToNode && v.Phase == v1.VolumeReady {
			events = append(events, phase.Event{Type: corev1.EventTypeNormal, Reason: vmistatus.ReasonVolumeMounted, Message: mountedMessage(v.Name)})
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
