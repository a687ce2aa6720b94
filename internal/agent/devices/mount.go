// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devices

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

const (
	// maxStarting is how many attachment Pods of a launcher Pod the broker watches for the agent. It watches four files
	// of a Pod at most, libvirtd's socket among them. The volumes of other attachment Pods are mounted when these are
	// ready.
	maxStarting = 2
	// startPatience is how long it watches one.
	startPatience = 2 * time.Minute
)

// startingMount is a request to mount a block device as soon as the container of its attachment Pod is started.
type startingMount struct {
	// attachment is the UID of the attachment Pod.
	attachment types.UID
	// stop ends the request.
	stop context.CancelFunc
	// done gets the outcome. It is nil once that was received. After a failure, the volume is mounted when the Pod is
	// ready.
	done chan error
}

// mountEarly mounts the block devices whose attachment Pods are started, which the kubelet has yet to report and
// virt-controller to write to the status: the guest need not wait for either. The status stays as it is until then, so
// that neither writer is in the other's way, and then has the outcome. A claim with a file system does wait, because
// its Pod creates the disk image after it has started.
func (s *Guest) mountEarly(ctx context.Context) {
	early := map[string]bool{}
	for i := range s.VMI.Status.VolumeStatus {
		v := &s.VMI.Status.VolumeStatus[i]
		if !isAttaching(v) || v.HotplugVolume.AttachPodName != launcherpod.AttachmentPod(string(s.Pod.UID), v.Name) ||
			!vmistatus.IsWanted(s.VMI, v) || isUtility(s.VMI, v.Name) || s.plugging(v.Name).mounted != "" ||
			!vmistatus.IsBlock(v.PersistentVolumeClaimInfo) || media.DiskBytes(v.PersistentVolumeClaimInfo) == 0 {
			continue
		}
		pod, err := s.attachmentPod(ctx, s.VMI, v.Name)
		if err == nil && pod != nil && podspec.HasClaim(pod, v.PersistentVolumeClaimInfo.ClaimName) {
			early[v.Name] = true
			err = s.mountStarted(ctx, v, pod)
		}
		if err != nil {
			log.FromContext(ctx).V(2).Info("A volume cannot be mounted early", "volume", v.Name, "error", err.Error())
		}
	}
	for name := range s.state.earlyMounts.byVolume {
		if !early[name] {
			s.stopStarting(name)
		}
	}
}

// earlyMounts are the requests about attachment Pods that are being started, by the name of their volume. See
// mountEarly.
type earlyMounts struct{ byVolume map[string]*startingMount }

// stop ends all requests. Their outcome no longer matters, because the Pod is gone.
func (m *earlyMounts) stop() {
	for _, mount := range m.byVolume {
		mount.stop()
	}
}

// isAttaching reports whether virt-controller has yet to write to a volume's status that the attachment Pod is ready.
func isAttaching(v *v1.VolumeStatus) bool {
	return vmistatus.IsHotplugged(v) && v.Phase == v1.HotplugVolumeAttachedToNode && !vmistatus.IsAttachedToNode(v)
}

// mountStarted mounts the block device of an attachment Pod if it is ready, or else has that done when it is started.
func (s *Guest) mountStarted(ctx context.Context, v *v1.VolumeStatus, pod *corev1.Pod) error {
	known := s.state.earlyMounts.byVolume[v.Name]
	if known != nil && known.attachment != pod.UID {
		s.stopStarting(v.Name)
		known = nil
	}
	var err error
	if known != nil {
		select {
		case err = <-known.done:
			known.done = nil
			if err == nil {
				s.stopStarting(v.Name)
				*s.plugging(v.Name) = plugging{mounted: pod.UID}
				return nil
			}
		default:
		}
	}
	switch {
	case isReady(pod):
		s.stopStarting(v.Name)
		return s.mountVolume(ctx, v, pod.UID)
	case known == nil && s.watching() < maxStarting:
		s.startMount(ctx, v.Name, pod.UID)
	}
	return err
}

// watching returns how many requests to mount a volume have no outcome yet.
func (s *Guest) watching() int {
	count := 0
	for _, mount := range s.state.earlyMounts.byVolume {
		if mount.done != nil && len(mount.done) == 0 {
			count++
		}
	}
	return count
}

// startMount begins to wait until an attachment Pod is started, in the broker. The VMI is enqueued when there is an
// outcome.
func (s *Guest) startMount(ctx context.Context, volume string, attachment types.UID) {
	bounded, stop := context.WithTimeout(context.WithoutCancel(ctx), startPatience)
	mount := &startingMount{attachment: attachment, stop: stop, done: make(chan error, 1)}
	if s.state.earlyMounts.byVolume == nil {
		s.state.earlyMounts.byVolume = map[string]*startingMount{}
	}
	s.state.earlyMounts.byVolume[volume] = mount
	files, enqueue, key, done := s.devices.Files(s.Pod.UID), s.devices.Enqueue, s.Key, mount.done
	go func() {
		defer stop()
		err := files.AttachDevice(bounded, volume, attachment)
		done <- err
		// After a failure, another volume may be next.
		if err == nil || !errors.Is(bounded.Err(), context.Canceled) {
			enqueue(key)
		}
	}()
}

// stopStarting cancels the request about a volume, if there is one. The mount may have succeeded, so a volume that is
// not wanted any more is unmounted in any case.
func (s *Guest) stopStarting(volume string) {
	mount := s.state.earlyMounts.byVolume[volume]
	if mount == nil {
		return
	}
	mount.stop()
	if mount.done != nil {
		// The connection is closed by then, before a request to unmount the volume is made. A mount that virt-broker
		// has started ends before it serves that request. One race remains: virt-broker may start the mount before it
		// notices the closed connection. The mount then follows the unmount, and the rule for the device exists until
		// the kubelet has removed the attachment Pod's volume.
		<-mount.done //nolint:errcheck // with either outcome, the volume may be mounted
	}
	delete(s.state.earlyMounts.byVolume, volume)
	status := vmistatus.FindVolume(&s.VMI.Status, volume)
	if status != nil && isAttaching(status) && !vmistatus.IsWanted(s.VMI, status) {
		s.plugging(volume).maybe = mount.attachment
	}
}

// isReady reports whether an attachment Pod is ready and not being deleted.
func isReady(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil && podstate.Ready(pod) }

// StartsOrIsReady passes the events by which an attachment Pod appears on this node, before which it is not in the
// cache, and becomes ready. virt-controller handles its other events.
var StartsOrIsReady = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { return isAttachment(e.Object, func(*corev1.Pod) bool { return true }) },
	UpdateFunc: func(e event.UpdateEvent) bool {
		return !isAttachment(e.ObjectOld, isReady) && isAttachment(e.ObjectNew, isReady)
	},
	DeleteFunc: func(event.DeleteEvent) bool { return false },
}

// isAttachment reports whether an object is an attachment Pod for which something is true.
func isAttachment(obj client.Object, is func(*corev1.Pod) bool) bool {
	pod, ok := obj.(*corev1.Pod)
	return ok && podspec.AttachmentUser(pod) != "" && is(pod)
}

// mountVolumes mounts in the launcher Pod the volumes that are wanted and on the node.
func (s *Guest) mountVolumes(ctx context.Context) error {
	var errs []error
	for i := range s.VMI.Status.VolumeStatus {
		v := &s.VMI.Status.VolumeStatus[i]
		if !vmistatus.IsAttachedToNode(v) || !vmistatus.IsWanted(s.VMI, v) || v.PersistentVolumeClaimInfo == nil {
			continue
		}
		err := s.mountVolume(ctx, v, v.HotplugVolume.AttachPodUID)
		if err != nil && s.pluggedDisk(v.Name) != nil {
			// The guest has it. After a migration, the attachment Pod may still be the source's.
			log.FromContext(ctx).V(2).Info("A volume that the guest uses cannot be mounted again yet", "volume", v.Name, "error",
				err.Error())
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
func (s *Guest) mountVolume(ctx context.Context, v *v1.VolumeStatus, attachment types.UID) error {
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
	if files := s.devices.Files(s.Pod.UID); s.VMI != nil && isUtility(s.VMI, v.Name) {
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

// awaitsImage reports whether a volume could not be mounted because its attachment Pod has not created the disk image
// yet. After some time, that is a failure like any other.
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
