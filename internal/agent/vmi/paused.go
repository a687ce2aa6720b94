// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/devices"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/limits"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

const (
	// apiErrorRetry is the delay between two attempts to resume a guest that libvirt could not resume.
	apiErrorRetry = 10 * time.Second
	// apiErrorLimit is how long after the first attempt the last one is made. The QEMU of a failed migration's target,
	// which may have the locks of the images, is ended sooner.
	apiErrorLimit = time.Minute
)

// messageIOError is the message of the condition Paused after an I/O error. KubeVirt's.
const messageIOError = "VMI was paused, low-level IO error detected"

// pause is the reason and the message of the condition Paused.
type pause struct {
	reason, message string
}

// pauses has the pauses by the domain's reason. The texts of the first two are KubeVirt's, which has no condition for
// the others.
var pauses = map[string]pause{
	hypervisor.PausedByUser:  {v1.PausedByUserReason, "VMI was paused by user"},
	hypervisor.PausedIOError: {v1.PausedIOErrorReason, messageIOError},
	hypervisor.PausedAPIError: {v1.PausedAPIErrorReason,
		"VMI was paused, libvirt could not resume it after a migration, a dump or a snapshot: " +
			"unpause it, or restart the VM"},
	hypervisor.PausedWatchdog: {v1.PausedWatchdogReason, "VMI was paused by its watchdog: unpause it, or reset it"},
	hypervisor.PausedCrashed:  {v1.PausedCrashedReason, "VMI was paused because the guest crashed: reset it"},
	hypervisor.PausedPostcopyFailed: {v1.PausedPostcopyFailedReason,
		"VMI was paused because a post-copy failed and a part of its memory " +
			"is missing: restart the VM"},
	hypervisor.PausedUnknown: {v1.PausedUnknownReason,
		"VMI was paused because QEMU stopped it for a reason that libvirt does not report, " +
			"such as an internal error: reset it, or restart the VM"},
}

func setPaused(s *scope, now metav1.Time) {
	status, d := &s.VMI.Status, s.Domain
	paused := pause{v1.PausedByMigrationMonitorReason, "VMI was paused by the migration monitor"}
	switch {
	case s.pausedForTransfer() && !vmistatus.IsConditionTrue(status, v1.VirtualMachineInstancePaused):
		// This may take long, which allowWorkloadDisruption permits.
	case s.inTransition():
		// The condition stays as it is: libvirt or the agent ends this state, and a user's pause lasts beyond it.
		return
	case !d.Active() || d.State != hypervisor.StatePaused:
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstancePaused)
		return
	case d.Reason == hypervisor.PausedByUser && isStopped(status):
		// The guest was migrated: libvirt on the target reports any paused guest as paused by a user.
		return
	default:
		paused = pauses[d.Reason]
	}
	if d.Reason == hypervisor.PausedAPIError && pausedFor(status, v1.PausedAPIErrorReason) == nil {
		// recoverFromAPIError counts from the condition's time, and a migration may have paused the guest long before
		// it failed.
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstancePaused)
	}
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstancePaused, Status: corev1.ConditionTrue, Reason: paused.reason, Message: paused.message,
	}, now)
}

// pausedFor returns the condition Paused if it is True with one of the reasons, or nil.
func pausedFor(status *v1.VirtualMachineInstanceStatus, reasons ...string) *v1.VirtualMachineInstanceCondition {
	c := vmistatus.FindCondition(status, v1.VirtualMachineInstancePaused)
	if c == nil || c.Status != corev1.ConditionTrue || !slices.Contains(reasons, c.Reason) {
		return nil
	}
	return c
}

// isStopped reports whether the guest has stopped by itself, so that resuming it does not help, or would hide that.
func isStopped(status *v1.VirtualMachineInstanceStatus) bool {
	return pausedFor(status, v1.PausedWatchdogReason, v1.PausedCrashedReason, v1.PausedUnknownReason) != nil
}

// unrequestedPause returns the condition Paused if neither a user nor a migration has requested it, or nil. An I/O
// error has events of its own: see addIOErrorEvents.
func unrequestedPause(status *v1.VirtualMachineInstanceStatus) *v1.VirtualMachineInstanceCondition {
	return pausedFor(status, v1.PausedAPIErrorReason, v1.PausedWatchdogReason, v1.PausedCrashedReason,
		v1.PausedPostcopyFailedReason,
		v1.PausedUnknownReason)
}

// isPausedFor reports whether a guest is paused for a reason, one of hypervisor's Paused constants.
func isPausedFor(d *hypervisor.Domain, reason string) bool {
	return d.Active() && d.State == hypervisor.StatePaused && d.Reason == reason
}

// apiErrorRecoverer resumes a guest that libvirt could not resume.
type apiErrorRecoverer interface {
	phase.DomainReader
	// SourceState returns the state of the guest and of libvirt's job, as the source of a migration.
	SourceState(ctx context.Context, domain string) (hypervisor.SourceState, error)
	// ResumeAfter resumes a guest that is paused for a reason, and no other.
	ResumeAfter(ctx context.Context, name, reason string) error
}

// apiErrors is about a guest that libvirt has paused because of an API error.
type apiErrors struct {
	// resumed is when resuming the guest was last tried, or zero.
	resumed time.Time
}

// recoverFromAPIError resumes a guest that libvirt has paused for a migration, a dump or a snapshot and could not
// resume: at once, and then for a minute from the time that the condition Paused has. libvirt sets this state only
// where it would otherwise have resumed the guest, so no other node can run it. A migration of a later start, which
// SourceState reports, resumes the guest itself.
func (r *Reconciler) recoverFromAPIError(ctx context.Context, s *scope, guest apiErrorRecoverer) error {
	if s.VMI == nil || !s.Assigned || !isPausedFor(s.Domain, hypervisor.PausedAPIError) ||
		vmistatus.Migrating(&s.VMI.Status) {
		return nil
	}
	known := pausedFor(&s.Before.Status, v1.PausedAPIErrorReason)
	if known != nil && s.Now.Sub(known.LastTransitionTime.Time) > apiErrorLimit {
		return nil
	}
	if left := s.cache.apiErrors.resumed.Add(apiErrorRetry).Sub(s.Now); left > 0 {
		s.RequeueAfter(left)
		return nil
	}
	s.RequeueAfter(apiErrorRetry)
	state, err := guest.SourceState(ctx, s.DomainName())
	if err != nil {
		return phase.FromConnection(err)
	}
	if state.Job || state.Domain != protocol.SourceRunning {
		return nil
	}
	s.cache.apiErrors.resumed = s.Now
	if err := guest.ResumeAfter(ctx, s.DomainName(), hypervisor.PausedAPIError); err != nil {
		log.FromContext(ctx).Error(err, "Cannot resume a guest that libvirt could not resume either")
		return nil
	}
	if err := s.ReadDomain(ctx, guest); err != nil {
		return err
	}
	if s.Domain.State == hypervisor.StateRunning {
		s.Event(corev1.EventTypeNormal, v1.Resumed.String(), "The guest was resumed, after libvirt could not resume it")
	}
	return nil
}

const (
	// resumeFirst is the delay before a guest that an I/O error paused is resumed, and resumeMost the longest delay
	// between two attempts. QEMU repeats the failed request and pauses the guest again if it still fails.
	resumeFirst = 10 * time.Second
	resumeMost  = time.Minute
	// resumeProof is how long a resumed guest must run before it counts as running, because requests take a while to
	// fail.
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

// recoverFromIOError resumes a guest that an I/O error paused, when its storage works again. No event reports that, so
// it tries repeatedly. It resumes only guests for which libvirt reports that reason: not those that a user paused. Only
// disks with the error policy stop or enospace pause a guest. docs/adr/0052
func (r *Reconciler) recoverFromIOError(ctx context.Context, s *scope, guest ioErrorRecoverer) error {
	m := &s.cache.recovery
	if s.VMI == nil || !s.Domain.Active() || devices.MigratesOrWill(s.VMI) {
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

// diskErrors returns a message for each volume whose disk failed. The texts are KubeVirt's
// (pkg/virt-launcher/notify-client).
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

// addIOErrorEvents adds events about the disks that failed if an I/O error paused the guest according to the status
// that was written.
func (s *scope) addIOErrorEvents() {
	if !pausedByIOError(&s.VMI.Status) || pausedByIOError(&s.Before.Status) {
		return
	}
	for _, message := range s.ioErrors {
		s.Event(corev1.EventTypeWarning, reasonIOError, message)
	}
}
