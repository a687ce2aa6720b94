// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/limits"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// reports limits the writes of the status.
type reports struct {
	// writes limits all writes but the unthrottled ones, and guest those that the guest alone causes.
	writes      *limits.TokenBucket
	unthrottled unthrottledReports
	guest       guestWriteLimit
}

func newReports() reports {
	return reports{
		guest:  newGuestWriteLimit(),
		writes: limits.NewTokenBucket(writeBurst, limits.ExponentialBackoff(writePause, maxWritePause)),
	}
}

// report writes the status and records the events. Events about actions are recorded even if the write fails, because
// the next reconciliation does not repeat the action. Events about changes of the status are recorded only after the
// write, because the next reconciliation derives them again. It returns how long a rate-limited change of the guest or
// the launcher is delayed.
func (r *Reconciler) report(ctx context.Context, s *scope, phaseErr error) (delay time.Duration, err error) {
	if s.Assigned {
		delay, err = r.writeStatus(ctx, s, phaseErr)
	}
	if s.KnownVMI() != nil {
		for _, e := range s.Events {
			r.Recorder.Eventf(s.KnownVMI(), nil, e.Type, e.Reason, e.Reason, "%s", e.Message)
		}
	}
	return delay, client.IgnoreNotFound(err)
}

// writeStatus computes and writes the status, and adds the events that follow from the change.
func (r *Reconciler) writeStatus(ctx context.Context, s *scope, phaseErr error) (delay time.Duration, err error) {
	limit := &s.cache.reports.guest
	if s.Domain.Active() {
		delay, s.delayedReport = limit.delay(s.report(), s.Now)
	}
	computeStatus(s, phaseErr)
	changed := !equality.Semantic.DeepEqual(&s.Before.Status, &s.VMI.Status)
	var unthrottled bool
	if changed {
		postponed := s.cache.reports.writes.Delay(s.Now)
		unthrottled = postponed > 0 && s.cache.reports.unthrottled.take(&s.Before.Status, &s.VMI.Status)
		if postponed > 0 && !unthrottled {
			return postponed, nil
		}
		if changed, err = r.patchStatus(ctx, s); err != nil {
			return 0, err
		}
	}
	if changed && !unthrottled {
		s.cache.reports.writes.Take(s.Now)
	}
	if s.Domain.Active() {
		limit.written(s.report(), changed, s.Now)
	}
	s.Events = append(s.Events, transitions(&s.Before.Status, &s.VMI.Status)...)
	s.addNotMigratableEvent()
	s.addIOErrorEvents()
	s.addTruncatedEvent()
	return delay, nil
}

// patchStatus patches the status when the namespace gets a slot, and reports whether the patch changed anything.
func (r *Reconciler) patchStatus(ctx context.Context, s *scope) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err = r.api.Do(ctx, s.Key.Namespace, func() error {
		changed, err = vmistatus.Patch(ctx, r.Client, vmistatus.Handler, s.Before, s.VMI)
		return err
	})
	return changed, err
}

// maxUnthrottled is how many writes each intent of virt-controller may cause in spite of the limit of writes: one for
// each of the three stages that a record passes through, and as many attempts that fail because another component has
// written. A launcher can cause no more.
const maxUnthrottled = 6

// unthrottledReports counts the writes that report to virt-controller how far a freeze or a backup is. They are not
// delayed, since a guest stays frozen until virt-controller sees the next stage.
type unthrottledReports struct {
	freeze, backup intentReports
}

// intentReports counts the writes for one intent.
type intentReports struct {
	intent string
	writes int
}

// take reports whether a change of the status may be written without delay, and counts it.
func (u *unthrottledReports) take(before, after *v1.VirtualMachineInstanceStatus) bool {
	allowed := false
	if had, has := before.SnapshotFreezeRecord, after.SnapshotFreezeRecord; after.SnapshotFreeze != nil && has != nil &&
		(had == nil || had.ID != has.ID || had.Stage != has.Stage) {
		allowed = u.freeze.take(after.SnapshotFreeze.ID)
	}
	if had, has := before.DiskBackupRecord, after.DiskBackupRecord; after.DiskBackup != nil && has != nil &&
		(had == nil || had.ID != has.ID || had.Stage != has.Stage) {
		allowed = u.backup.take(after.DiskBackup.ID) || allowed
	}
	return allowed
}

func (r *intentReports) take(intent string) bool {
	if r.intent != intent {
		*r = intentReports{intent: intent}
	}
	r.writes++
	return r.writes <= maxUnthrottled
}

const (
	// guestBurst is how many status writes a guest may cause without a delay. A boot takes four: the guest agent
	// connects, reports, gets its credentials, and gets an address.
	guestBurst = 5
	// guestPause is the time between two writes that a guest causes beyond that. It doubles with each delayed write, up
	// to maxGuestPause, and is reset when the guest causes none for guestBurst pauses.
	guestPause    = 10 * time.Second
	maxGuestPause = 5 * time.Minute
	// maxGuestReport is how many bytes of a VMI's status a guest can fill, as JSON.
	maxGuestReport = 32 << 10
)

// reasonGuestReportCut is the reason of the event that a guest reported more than maxGuestReport.
const reasonGuestReportCut = "GuestReportTruncated"

// guestReport is the part of a VMI's status that its guest alone determines.
type guestReport struct {
	// connected reports whether the guest agent has opened its channel.
	connected bool
	// info is the agent's last report, or nil.
	info *hypervisor.GuestInfo
	// credentials is the result of setting the access credentials, or nil.
	credentials *hypervisor.CredentialsState
	// memory is the size of the guest's memory according to its balloon or its memory device; nil if that is not known.
	memory *resource.Quantity
}

// equal reports whether two reports result in the same status. The quantities are canonical.
func (g *guestReport) equal(other guestReport) bool { return reflect.DeepEqual(*g, other) }

// report returns the guest's report of this reconciliation, or the previous one if writes are rate limited.
func (s *scope) report() guestReport {
	if s.delayedReport != nil {
		return *s.delayedReport
	}
	return guestReport{
		connected: s.Domain.Active() && s.Domain.AgentConnected(), info: s.guest, credentials: s.credentials,
		memory: currentMemory(s.Domain),
	}
}

// guestWriteLimit limits how often a guest causes writes of its VMI's status. A delayed change is not lost: the
// reconciliation is repeated when there is a token, and writes the report of that time.
type guestWriteLimit struct {
	// last is the report in the status, or nil if that is not known.
	last    *guestReport
	limiter *limits.TokenBucket
}

func newGuestWriteLimit() guestWriteLimit {
	return guestWriteLimit{limiter: limits.NewTokenBucket(guestBurst,
		limits.ExponentialBackoff(guestPause, maxGuestPause))}
}

// delay returns how long the write of a report is delayed, and the report to use until then.
func (g *guestWriteLimit) delay(report guestReport, now time.Time) (time.Duration, *guestReport) {
	if g.last == nil || g.last.equal(report) {
		return 0, nil
	}
	if wait := g.limiter.Delay(now); wait > 0 {
		return wait, g.last
	}
	return 0, nil
}

// written notes that the status contains a report, and whether it was changed for that.
func (g *guestWriteLimit) written(report guestReport, changed bool, now time.Time) {
	before := g.last
	g.last = &report
	if before != nil && changed && !before.equal(report) {
		g.limiter.Take(now)
	}
}

// reportSpace is what is left of maxGuestReport.
type reportSpace struct {
	bytes int
	// omitted counts the interfaces that did not fit.
	omitted int
}

// take uses up the space that an entry of the status needs, and reports whether it fits.
func (r *reportSpace) take(entry any) bool {
	text, err := json.Marshal(entry)
	if err != nil || len(text) > r.bytes {
		r.omitted++
		return false
	}
	r.bytes -= len(text)
	return true
}

// addTruncatedEvent adds an event if the status does not contain all interfaces that the guest reports.
func (s *scope) addTruncatedEvent() {
	if s.omitted == 0 || equality.Semantic.DeepEqual(s.Before.Status.Interfaces, s.VMI.Status.Interfaces) {
		return
	}
	s.Event(corev1.EventTypeWarning, reasonGuestReportCut, fmt.Sprintf(
		"The guest agent reports more network interfaces than the status may have: %d are omitted", s.omitted))
}

// guestMAC returns the MAC address that a guest reports for an interface, or nothing if it is invalid.
func guestMAC(text string) string {
	mac, err := net.ParseMAC(text)
	if err != nil {
		return ""
	}
	return mac.String()
}

// osInfo returns the guest's operating system as the status contains it.
func osInfo(guest *hypervisor.GuestInfo) v1.VirtualMachineInstanceGuestOSInfo {
	return v1.VirtualMachineInstanceGuestOSInfo{
		Name: guest.OS.Name, KernelRelease: guest.OS.KernelRelease, Version: guest.OS.Version,
		PrettyName: guest.OS.PrettyName, VersionID: guest.OS.VersionID, KernelVersion: guest.OS.KernelVersion,
		Machine: guest.OS.Machine, ID: guest.OS.ID,
	}
}
