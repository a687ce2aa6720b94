// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"encoding/json"
	"fmt"
	"net"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/limits"
)

const (
	// guestBurst is how many status writes a guest may cause without a delay. A boot takes four: the guest agent connects,
	// reports, gets its credentials, and gets an address.
	guestBurst = 5
	// guestPause is the time between two writes that a guest causes beyond that. It doubles with each delayed write, up to
	// maxGuestPause, and is reset when the guest causes none for guestBurst pauses.
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
		connected: s.Domain.Active() && s.Domain.AgentConnected(), info: s.guest, credentials: s.credentials, memory: currentMemory(s.Domain),
	}
}

// guestWriteLimit limits how often a guest causes writes of its VMI's status. A delayed change is not lost: the reconciliation is
// repeated when there is a token, and writes the report of that time.
type guestWriteLimit struct {
	// last is the report in the status, or nil if that is not known.
	last    *guestReport
	limiter *limits.TokenBucket
}

func newGuestWriteLimit() guestWriteLimit {
	return guestWriteLimit{limiter: limits.NewTokenBucket(guestBurst, limits.ExponentialBackoff(guestPause, maxGuestPause))}
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
