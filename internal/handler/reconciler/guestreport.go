// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

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
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/pace"
)

const (
	// guestBurst is how many status writes a guest may cause at once. A boot takes four: the agent connects, answers, has its
	// credentials, and gets an address.
	guestBurst = 5
	// guestPause is the time between two writes that a guest causes beyond that. It doubles with each that had to wait, up to
	// maxGuestPause, and is the first one again when the guest was quiet for guestBurst pauses.
	guestPause    = 10 * time.Second
	maxGuestPause = 5 * time.Minute
	// maxGuestReport is how many bytes of a VMI's status a guest can fill, as JSON.
	maxGuestReport = 32 << 10
)

// reasonGuestReportCut is the reason of the event that tells that a guest reported more than maxGuestReport.
const reasonGuestReportCut = "GuestReportTruncated"

// guestReport is the part of a VMI's status that its guest alone decides about.
type guestReport struct {
	// connected says that the guest agent has opened its channel.
	connected bool
	// info is what the agent answered last, or nil.
	info *hypervisor.GuestInfo
	// credentials is what the agent made of the access credentials, or nil.
	credentials *hypervisor.CredentialsState
	// memory is what the guest has, by its balloon; nil if that is not known.
	memory *resource.Quantity
}

// equal says that two reports make the same status. The quantities are canonical.
func (g *guestReport) equal(other guestReport) bool { return reflect.DeepEqual(*g, other) }

// report is the guest's part of what was seen in this reconcile, or the one that was written before if it is held back.
func (s *scope) report() guestReport {
	if s.held != nil {
		return *s.held
	}
	return guestReport{
		connected: s.domain.Active() && s.domain.AgentConnected(), info: s.guest, credentials: s.credentials, memory: currentMemory(s.domain),
	}
}

// guestShare bounds how often a guest makes its VMI's status be written. A change that has to wait is not lost: the reconcile is
// repeated when there is a token, and writes what is true then.
type guestShare struct {
	// written is the report that the status has, or nil if that is not known.
	written *guestReport
	bucket  *pace.Bucket
}

func newGuestShare() guestShare {
	return guestShare{bucket: pace.NewBucket(guestBurst, pace.Doubling(guestPause, maxGuestPause))}
}

// hold returns how long a new report has to wait, and the one to use until then.
func (g *guestShare) hold(report guestReport, now time.Time) (time.Duration, *guestReport) {
	if g.written == nil || g.written.equal(report) {
		return 0, nil
	}
	if wait := g.bucket.Wait(now); wait > 0 {
		return wait, g.written
	}
	return 0, nil
}

// wrote notes that the status agrees with a report, and whether it had to be written for that.
func (g *guestShare) wrote(report guestReport, changed bool, now time.Time) {
	before := g.written
	g.written = &report
	if before != nil && changed && !before.equal(report) {
		g.bucket.Take(now)
	}
}

// room is what is left of maxGuestReport.
type room struct {
	bytes int
	// omitted counts the interfaces that found no place.
	omitted int
}

// take uses up the room that an entry of the status needs, or says that there is none left.
func (r *room) take(entry any) bool {
	text, err := json.Marshal(entry)
	if err != nil || len(text) > r.bytes {
		r.omitted++
		return false
	}
	r.bytes -= len(text)
	return true
}

// noteOmitted adds an event when the interfaces that were written are not all that the guest reports.
func (s *scope) noteOmitted() {
	if s.omitted == 0 || equality.Semantic.DeepEqual(s.before.Status.Interfaces, s.vmi.Status.Interfaces) {
		return
	}
	s.event(corev1.EventTypeWarning, reasonGuestReportCut, fmt.Sprintf(
		"The guest agent reports more network interfaces than the status takes, %d are left out", s.omitted))
}

// guestMAC is the hardware address that a guest's interface has by its own word, or nothing if that is none.
func guestMAC(text string) string {
	mac, err := net.ParseMAC(text)
	if err != nil {
		return ""
	}
	return mac.String()
}

// osInfo is the guest's operating system, as the status has it.
func osInfo(guest *hypervisor.GuestInfo) v1.VirtualMachineInstanceGuestOSInfo {
	return v1.VirtualMachineInstanceGuestOSInfo{
		Name: guest.OS.Name, KernelRelease: guest.OS.KernelRelease, Version: guest.OS.Version,
		PrettyName: guest.OS.PrettyName, VersionID: guest.OS.VersionID, KernelVersion: guest.OS.KernelVersion,
		Machine: guest.OS.Machine, ID: guest.OS.ID,
	}
}
