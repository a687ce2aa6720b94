// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// A hotplugged volume is in an attachment Pod, which virt-controller creates. Its state is described in package
// vmistatus. The agent's part is to mount it in the launcher Pod, to attach its disk to the guest, and the reverse. All
// of it follows from the spec, the status, the attachment Pods and the running domain, so a new agent continues where
// an earlier one has stopped.

// Reasons of the status of a hotplugged volume, and of the events about it, beside those in package vmistatus.
// KubeVirt's.
const (
	// ReasonVolumeReady: the guest has it.
	ReasonVolumeReady = "VolumeReady"
	// ReasonVolumeUnplugged: the guest has released it. Only an event has this reason.
	ReasonVolumeUnplugged = "VolumeUnplugged"
	// ReasonVolumeUnmounted: it is not in the launcher Pod any more.
	ReasonVolumeUnmounted = "VolumeUnMountedFromPod"
	// ReasonHotplugVolume is the reason of the condition Synchronized if a volume cannot be mounted in the launcher Pod
	// or unmounted.
	ReasonHotplugVolume = "HotPlugVolumeError"
)

const (
	// mountTimeout bounds a request to mount or unmount a volume. The broker continues after that, and a later request
	// returns the result.
	mountTimeout = 10 * time.Second
	// plugRetry is the delay before a guest is requested again to release a disk, and before a volume without an image
	// is tried again.
	plugRetry = 15 * time.Second
	// imageRetry is that delay for a disk image that does not exist, for as long as the attachment Pod may be about to
	// create it. The Pod is ready as soon as its container runs.
	imageRetry    = time.Second
	imagePatience = 10 * time.Second
	// releasePatience is how long a guest may take to release a disk before the status reports that it has not.
	releasePatience = 5 * time.Second
)

// diskPlugger changes the disks of a running guest.
type diskPlugger interface {
	phase.DomainReader
	DiskMeter
	// ChangeDisk attaches, detaches or changes a disk of a running guest. A guest may release a detached disk later, or
	// not at all.
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
func (s *Guest) plugging(volume string) *plugging {
	known := &s.state.pluggings
	if known.byVolume == nil {
		known.byVolume = map[string]*plugging{}
	}
	if known.byVolume[volume] == nil {
		known.byVolume[volume] = &plugging{}
	}
	return known.byVolume[volume]
}

// IsMounted reports whether a hotplugged volume is in the launcher Pod.
func (s *Guest) IsMounted(volume string) bool { return s.plugging(volume).mounted != "" }

// forgetPlugged forgets what is known about volumes that are not in the status any more: others may get their names.
func (s *Guest) forgetPlugged() {
	maps.DeleteFunc(s.state.pluggings.byVolume, func(volume string, _ *plugging) bool {
		return vmistatus.FindVolume(&s.VMI.Status, volume) == nil
	})
	s.state.growths.forgetOthers(&s.VMI.Status)
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

// WithoutHotplugged returns a VMI without its hotplugged volumes.
func WithoutHotplugged(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) *v1.VirtualMachineInstance {
	rest := *vmi
	rest.Spec.Volumes = nil
	for i := range vmi.Spec.Volumes {
		if !isHotplugged(vmi, pod, &vmi.Spec.Volumes[i]) {
			rest.Spec.Volumes = append(rest.Spec.Volumes, vmi.Spec.Volumes[i])
		}
	}
	return &rest
}

// MountBeforeStart mounts the hotplugged volumes of a guest that is to be started, and waits for those that are not on
// the node yet: the guest gets all its disks at its start, in the order of the spec.
func (s *Guest) MountBeforeStart(ctx context.Context) error {
	if err := errors.Join(s.mountVolumes(ctx), s.unmountVolumes(ctx)); err != nil {
		return notMounted(err)
	}
	for i := range s.VMI.Spec.Volumes {
		v := &s.VMI.Spec.Volumes[i]
		if isHotplugged(s.VMI, s.Pod, v) && s.plugging(v.Name).mounted == "" {
			return &outcome.Wait{Reason: fmt.Sprintf("the hotplugged volume %s to be attached to the node", v.Name)}
		}
	}
	return nil
}

// WithPlugged returns the prepared volumes with the hotplugged ones that are in the launcher Pod. It does not change
// prepared, and returns nil if that is nil.
func (s *Guest) WithPlugged(vmi *v1.VirtualMachineInstance, prepared *media.Result) *media.Result {
	if prepared == nil {
		return nil
	}
	disks := *prepared
	disks.Disks = maps.Clone(prepared.Disks)
	maps.Copy(disks.Disks, s.pluggedFacts(vmi))
	return &disks
}

// MountOnTarget mounts in the target's Pod the hotplugged volumes of a guest that is to be received. The Pod has
// attachment Pods of its own, whose names are known.
func (s *Guest) MountOnTarget(ctx context.Context) error {
	for i := range s.Incoming.Status.VolumeStatus {
		v := &s.Incoming.Status.VolumeStatus[i]
		if !vmistatus.IsHotplugged(v) || !vmistatus.IsWanted(s.Incoming, v) || v.PersistentVolumeClaimInfo == nil ||
			v.Phase != v1.HotplugVolumeMounted && v.Phase != v1.VolumeReady || s.plugging(v.Name).mounted != "" ||
			isUtility(s.Incoming, v.Name) {
			continue
		}
		pod, err := s.attachmentPod(ctx, s.Incoming, v.Name)
		if err != nil {
			return err
		}
		if pod == nil || !isReady(pod) {
			return &outcome.Wait{Reason: fmt.Sprintf("the attachment Pod of volume %s", v.Name)}
		}
		err = s.mountVolume(ctx, v, pod.UID)
		if s.plugging(v.Name).awaitsImage(err, s.Now) {
			return &outcome.Requeue{After: imageRetry}
		}
		if err != nil {
			return notMounted(err)
		}
	}
	return nil
}

// attachmentPod returns the attachment Pod of a volume for the launcher Pod, or nil if it is not on this node or is
// being deleted. An event follows when it is there, and when it is ready.
func (s *Guest) attachmentPod(ctx context.Context, vmi *v1.VirtualMachineInstance, volume string) (*corev1.Pod, error) {
	pod, key := &corev1.Pod{},
		client.ObjectKey{Namespace: s.Key.Namespace, Name: launcherpod.AttachmentPod(string(s.Pod.UID), volume)}
	switch err := s.devices.Client.Get(ctx, key, pod); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read attachment Pod %s: %w", key, err)
	case !podspec.IsAttachmentOf(pod, vmi) || pod.Spec.NodeName != s.devices.Node || pod.DeletionTimestamp != nil:
		return nil, nil
	default:
		return pod, nil
	}
}

// PlugVolumes plugs the hotplugged volumes of a running guest's spec, and unplugs the others.
func (s *Guest) PlugVolumes(ctx context.Context, guest diskPlugger) error {
	if !s.Assigned || s.VMI.DeletionTimestamp != nil || s.Pod.DeletionTimestamp != nil || !s.Domain.Active() ||
		s.Domain.Transient() ||
		vmistatus.Migrating(&s.VMI.Status) || !s.hotplugs() {
		return nil
	}
	s.forgetPlugged()
	s.mountEarly(ctx)
	mounting := s.mountVolumes(ctx)
	invalid, err := s.changeDisks(ctx, guest)
	if err != nil {
		return phase.FromConnection(err)
	}
	if !s.Domain.Active() {
		return nil // It has ended meanwhile.
	}
	unmounting := s.unmountVolumes(ctx)
	s.reportPlugged()
	if invalid != nil {
		return &outcome.Terminal{Reason: ReasonHotplugVolume, Err: invalid}
	}
	return notMounted(errors.Join(mounting, unmounting))
}

// hotplugs reports whether the guest has hotplugged volumes, or is to have some.
func (s *Guest) hotplugs() bool {
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

// pluggedFacts returns the facts about the volumes that are wanted and in the launcher Pod.
func (s *Guest) pluggedFacts(vmi *v1.VirtualMachineInstance) map[string]domain.DiskFact {
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
			CapacityBytes: int64(media.DiskBytes(v.PersistentVolumeClaimInfo)),
			KeepsSpace:    v.PersistentVolumeClaimInfo.Preallocated,
		}
	}
	return disks
}

// changeDisks changes the disks of a running guest. The first error is about disks of the spec that cannot be plugged,
// the other one about the connection. What libvirt refuses is in the status of the volume.
func (s *Guest) changeDisks(ctx context.Context, guest diskPlugger) (invalid, err error) {
	collected, err := s.inspectPlugged(ctx)
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
		s.state.sizes.forget()
		s.Measure(ctx, guest)
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

// attempted records an attempt to change a disk. If it has succeeded, the next one follows if the domain has not
// changed by then.
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
func (s *Guest) inspectPlugged(ctx context.Context) (domain.Facts, error) {
	collected := domain.Facts{Disks: s.pluggedFacts(s.VMI)}
	files := s.devices.Files(s.Pod.UID)
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
	collected.Unplugged = Unplugged(s.VMI, s.Pod, collected.Disks)
	return collected, nil
}

// Unplugged returns the names of the hotplugged volumes that are wanted and not among the disks.
func Unplugged(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, disks map[string]domain.DiskFact) map[string]bool {
	missing := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		status := vmistatus.FindVolume(&vmi.Status, v.Name)
		if _, known := disks[v.Name]; !known && isHotplugged(vmi, pod, v) &&
			(status == nil || vmistatus.IsWanted(vmi, status)) {
			missing[v.Name] = true
		}
	}
	return missing
}

// unmountVolumes unmounts the volumes that are not wanted, once the guest has released them and QEMU writes no backup
// to them.
func (s *Guest) unmountVolumes(ctx context.Context) error {
	var errs []error
	for i := range s.VMI.Status.VolumeStatus {
		v := &s.VMI.Status.VolumeStatus[i]
		if !vmistatus.IsHotplugged(v) || vmistatus.IsWanted(s.VMI, v) || s.pluggedDisk(v.Name) != nil ||
			s.jobs.BacksUpTo(v.Name) {
			continue
		}
		switch v.Phase {
		case v1.HotplugVolumeAttachedToNode, v1.HotplugVolumeMounted, v1.VolumeReady, v1.MemoryDumpVolumeCompleted,
			v1.MemoryDumpVolumeFailed:
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
			err := s.devices.Files(s.Pod.UID).DetachVolume(bounded, v.Name, attachment,
				vmistatus.IsBlock(v.PersistentVolumeClaimInfo))
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
		delete(s.state.pluggings.byVolume, v.Name)
		v.Phase, v.Reason, v.Target = v1.HotplugVolumeUnMounted, ReasonVolumeUnmounted, ""
		v.Message = fmt.Sprintf("Volume %s has been unmounted from virt-launcher pod", v.Name)
	}
	return errors.Join(errs...)
}

// pluggedDisk returns the disk of the running domain whose medium is a hotplugged volume, or nil.
func (s *Guest) pluggedDisk(volume string) *libvirtxml.DomainDisk {
	if !s.Domain.Active() {
		return nil
	}
	if disk := domain.FindDisk(s.Domain.XML, domain.DiskAlias(volume)); disk != nil && domain.IsPlugged(disk) {
		return disk
	}
	return nil
}
