// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

const (
	// maxStarting is how many attachment Pods of a launcher Pod the broker watches for the agent. It watches four files of a Pod at most,
	// libvirtd's socket among them. The volumes of other attachment Pods are mounted when these are ready.
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
	// done gets the outcome. It is nil once that was received. After a failure, the volume is mounted when the Pod is ready.
	done chan error
}

// mountEarly mounts the block devices whose attachment Pods are started, which the kubelet has yet to report and virt-controller to write to
// the status: the guest need not wait for either. The status stays as it is until then, so that neither writer is in the other's way, and
// then has the outcome.
// A claim with a file system does wait, because its Pod creates the disk image after it has started.
func (r *Reconciler) mountEarly(ctx context.Context, s *scope) {
	early := map[string]bool{}
	for i := range s.VMI.Status.VolumeStatus {
		v := &s.VMI.Status.VolumeStatus[i]
		if !isAttaching(v) || v.HotplugVolume.AttachPodName != launcherpod.AttachmentPod(string(s.Pod.UID), v.Name) ||
			!vmistatus.IsWanted(s.VMI, v) || isUtility(s.VMI, v.Name) || s.plugging(v.Name).mounted != "" ||
			!vmistatus.IsBlock(v.PersistentVolumeClaimInfo) || media.DiskBytes(v.PersistentVolumeClaimInfo) == 0 {
			continue
		}
		pod, err := r.attachmentPod(ctx, s, s.VMI, v.Name)
		if err == nil && pod != nil && podspec.HasClaim(pod, v.PersistentVolumeClaimInfo.ClaimName) {
			early[v.Name] = true
			err = r.mountStarted(ctx, s, v, pod)
		}
		if err != nil {
			log.FromContext(ctx).V(2).Info("A volume cannot be mounted early", "volume", v.Name, "error", err.Error())
		}
	}
	for name := range s.cache.earlyMounts.byVolume {
		if !early[name] {
			s.stopStarting(name)
		}
	}
}

// earlyMounts are the requests about attachment Pods that are being started, by the name of their volume. See mountEarly.
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
func (r *Reconciler) mountStarted(ctx context.Context, s *scope, v *v1.VolumeStatus, pod *corev1.Pod) error {
	known := s.cache.earlyMounts.byVolume[v.Name]
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
		return r.mountVolume(ctx, s, v, pod.UID)
	case known == nil && s.watching() < maxStarting:
		r.startMount(ctx, s, v.Name, pod.UID)
	}
	return err
}

// watching returns how many requests to mount a volume have no outcome yet.
func (s *scope) watching() int {
	count := 0
	for _, mount := range s.cache.earlyMounts.byVolume {
		if mount.done != nil && len(mount.done) == 0 {
			count++
		}
	}
	return count
}

// startMount begins to wait until an attachment Pod is started, in the broker. The VMI is enqueued when there is an outcome.
func (r *Reconciler) startMount(ctx context.Context, s *scope, volume string, attachment types.UID) {
	bounded, stop := context.WithTimeout(context.WithoutCancel(ctx), startPatience)
	mount := &startingMount{attachment: attachment, stop: stop, done: make(chan error, 1)}
	if s.cache.earlyMounts.byVolume == nil {
		s.cache.earlyMounts.byVolume = map[string]*startingMount{}
	}
	s.cache.earlyMounts.byVolume[volume] = mount
	files, key, done := r.Files(s.Pod.UID), s.Key, mount.done
	go func() {
		defer stop()
		err := files.AttachDevice(bounded, volume, attachment)
		done <- err
		// After a failure, another volume may be next.
		if err == nil || !errors.Is(bounded.Err(), context.Canceled) {
			r.Enqueue(key)
		}
	}()
}

// stopStarting cancels the request about a volume, if there is one. The mount may have succeeded, so a volume that is
// not wanted any more is unmounted in any case.
func (s *scope) stopStarting(volume string) {
	mount := s.cache.earlyMounts.byVolume[volume]
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
	delete(s.cache.earlyMounts.byVolume, volume)
	status := vmistatus.FindVolume(&s.VMI.Status, volume)
	if status != nil && isAttaching(status) && !vmistatus.IsWanted(s.VMI, status) {
		s.plugging(volume).maybe = mount.attachment
	}
}
