// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/limits"
)

const (
	// resumeFirst is the delay before a guest that an I/O error paused is resumed, and resumeMost the longest delay between two
	// attempts. QEMU repeats the failed request and pauses the guest again if it still fails.
	resumeFirst = 10 * time.Second
	resumeMost  = time.Minute
	// resumeProof is how long a resumed guest must run before it counts as running, because requests take a while to fail.
	resumeProof = 5 * time.Second
	// reasonIOError is KubeVirt's reason of the event (pkg/virt-launcher/notify-client).
	reasonIOError = "IOerror"
)

// ioErrorRecoverer resumes a guest that an I/O error paused.
type ioErrorRecoverer interface {
	// DiskErrors returns the disks of a running domain that have failed, by the name of their target.
	DiskErrors(ctx context.Context, name string) (map[string]hypervisor.DiskError, error)
	// ResumeAfter resumes a guest that is paused for a reason, and no other.
	ResumeAfter(ctx context.Context, name, reason string) error
}

// recovery is the state of resuming a guest that an I/O error paused.
type recovery struct {
	// next is when to resume it next, or zero.
	next time.Time
	// pauses are the delays between attempts.
	pauses wait.Backoff
	// tried is when it was resumed last, or zero.
	tried time.Time
}

// recoverFromIOError resumes a guest that an I/O error paused, when its storage works again. No event reports that, so it tries
// repeatedly. It resumes only guests for which libvirt reports that reason: not those that a user paused. Only disks with the
// error policy stop or enospace pause a guest. docs/adr/0052
func (r *Reconciler) recoverFromIOError(ctx context.Context, s *scope, guest ioErrorRecoverer) error {
	m := &s.cache.recovery
	if s.VMI == nil || !s.Domain.Active() || migratesOrWill(s.VMI) {
		return nil
	}
	if !isPausedFor(s.Domain, hypervisor.PausedIOError) {
		if left := m.tried.Add(resumeProof).Sub(s.Now); left > 0 && s.Domain.State == hypervisor.StateRunning {
			// It may be paused again in a moment, so its state is not reported yet.
			s.settling = true
			s.RequeueAfter(left)
			return nil
		}
		*m = recovery{}
		return nil
	}
	if !pausedByIOError(&s.Before.Status) {
		s.ioErrors = diskErrors(ctx, s, guest)
	}
	if m.next.IsZero() {
		m.pauses = limits.ExponentialBackoff(resumeFirst, resumeMost)
		m.next = s.Now.Add(m.pauses.Step())
	}
	if left := m.next.Sub(s.Now); left > 0 {
		s.RequeueAfter(left)
		return nil
	}
	if err := guest.ResumeAfter(ctx, s.DomainName(), hypervisor.PausedIOError); err != nil {
		log.FromContext(ctx).Error(err, "Cannot resume a guest that an I/O error paused")
	}
	m.tried, m.next = s.Now, s.Now.Add(m.pauses.Step())
	s.RequeueAfter(resumeProof)
	return nil
}

func pausedByIOError(status *v1.VirtualMachineInstanceStatus) bool {
	return pausedFor(status, v1.PausedIOErrorReason) != nil
}

// diskErrors returns a message for each volume whose disk failed. The texts are KubeVirt's (pkg/virt-launcher/notify-client).
func diskErrors(ctx context.Context, s *scope, guest ioErrorRecoverer) []string {
	failed, err := guest.DiskErrors(ctx, s.DomainName())
	if err != nil {
		log.FromContext(ctx).V(3).Info("Cannot read which disk failed", "error", err.Error())
	}
	var messages []string
	for i := range s.VMI.Spec.Volumes {
		name := s.VMI.Spec.Volumes[i].Name
		switch failed[s.DiskTarget(name)] {
		case hypervisor.DiskErrorNone:
		case hypervisor.DiskErrorNoSpace:
			messages = append(messages, "VM Paused due to not enough space on volume: "+name)
		default:
			messages = append(messages, "VM Paused due to IO error at the volume: "+name)
		}
	}
	if len(messages) == 0 {
		messages = []string{messageIOError}
	}
	return messages
}

// addIOErrorEvents adds events about the disks that failed if an I/O error paused the guest according to the status that was written.
func (s *scope) addIOErrorEvents() {
	if !pausedByIOError(&s.VMI.Status) || pausedByIOError(&s.Before.Status) {
		return
	}
	for _, message := range s.ioErrors {
		s.Event(corev1.EventTypeWarning, reasonIOError, message)
	}
}
