// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/pace"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

const (
	// resumeFirst is how long a guest that an I/O error paused stands still before it is resumed, and resumeMost the longest pause between two
	// attempts: QEMU repeats the request that failed, and pauses the guest again if it still fails.
	resumeFirst = 10 * time.Second
	resumeMost  = time.Minute
	// resumeProof is how long a guest that was resumed must run before it counts as running: requests take their time to fail.
	resumeProof = 5 * time.Second
	// reasonIOError is KubeVirt's reason of the event (pkg/virt-launcher/notify-client).
	reasonIOError = "IOerror"
)

// recovery is how far a guest is from running on that an I/O error paused.
type recovery struct {
	// next is when to resume it, or zero, and pauses are those between attempts.
	next   time.Time
	pauses wait.Backoff
	// tried is when it was resumed last, or zero.
	tried time.Time
}

// resume lets a guest go on that an I/O error paused, when its storage is back: nothing says when that is, so it is tried. Only pauses that libvirt
// gives that reason are ended: a user's stays, and a disk with another error policy than stop and enospace pauses nobody. docs/adr/0052
func (r *Reconciler) resume(ctx context.Context, s *scope) error {
	m := &s.memory.recovery
	if s.vmi == nil || !s.domain.Active() || moves(s.vmi) {
		return nil
	}
	if !isIOError(s.domain) {
		if left := m.tried.Add(resumeProof).Sub(s.now); left > 0 && s.domain.State == hypervisor.StateRunning {
			// It may be paused again in a moment, which is nothing to report.
			s.settling = true
			s.lookAgain(left)
			return nil
		}
		*m = recovery{}
		return nil
	}
	if !pausedByIOError(&s.before.Status) {
		s.ioErrors = r.diskErrors(ctx, s)
	}
	if m.next.IsZero() {
		m.pauses = pace.Doubling(resumeFirst, resumeMost)
		m.next = s.now.Add(m.pauses.Step())
	}
	if left := m.next.Sub(s.now); left > 0 {
		s.lookAgain(left)
		return nil
	}
	if err := s.machine.ResumeAfterIOError(ctx, s.domainName()); err != nil {
		log.FromContext(ctx).Error(err, "Cannot resume a guest that an I/O error paused")
	}
	m.tried, m.next = s.now, s.now.Add(m.pauses.Step())
	s.lookAgain(resumeProof)
	return nil
}

func isIOError(d *hypervisor.Domain) bool {
	return d.Active() && d.State == hypervisor.StatePaused && d.Reason == hypervisor.PausedIOError
}

func pausedByIOError(status *v1.VirtualMachineInstanceStatus) bool {
	c := vmistatus.FindCondition(status, v1.VirtualMachineInstancePaused)
	return c != nil && c.Status == corev1.ConditionTrue && c.Reason == v1.PausedIOErrorReason
}

// diskErrors are the words for each volume whose disk failed. KubeVirt's (pkg/virt-launcher/notify-client).
func (r *Reconciler) diskErrors(ctx context.Context, s *scope) []string {
	failed, err := s.machine.DiskErrors(ctx, s.domainName())
	if err != nil {
		log.FromContext(ctx).V(3).Info("Which disk failed is not known", "error", err.Error())
	}
	var messages []string
	for i := range s.vmi.Spec.Volumes {
		name := s.vmi.Spec.Volumes[i].Name
		switch failed[diskTarget(s.domain.XML, domain.DiskAlias(name))] {
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

// noteIOErrors adds the events about the disks that failed, once the status that they follow from is written.
func (s *scope) noteIOErrors() {
	if !pausedByIOError(&s.vmi.Status) || pausedByIOError(&s.before.Status) {
		return
	}
	for _, message := range s.ioErrors {
		s.event(corev1.EventTypeWarning, reasonIOError, message)
	}
}
