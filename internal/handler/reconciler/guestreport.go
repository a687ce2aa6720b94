// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"encoding/json"
	"fmt"
	"net"
	"reflect"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

const (
	// guestBurst is how many status writes a guest may cause at once. A boot takes four: the agent connects, answers, has its
	// credentials, and gets an address.
	guestBurst = 5
	// guestPause is the time between two writes that a guest causes beyond that. It doubles with each that had to wait, up to
	// maxGuestPause, and is back at its beginning when the guest was quiet for guestBurst pauses.
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

// guestShare bounds how often a guest makes its VMI's status be written. It is a token bucket. A change that finds it empty is
// not lost: the reconcile is repeated when there is a token, and writes what is true then.
type guestShare struct {
	// written is the report that the status has, or nil if that is not known.
	written *guestReport
	bucket  *rate.Limiter
	pause   time.Duration
	// delayed says that a change had to wait since the last write.
	delayed bool
}

// hold returns how long a new report has to wait, and the one to use until then.
func (g *guestShare) hold(report guestReport, now time.Time) (time.Duration, *guestReport) {
	if g.written == nil || g.written.equal(report) {
		return 0, nil
	}
	// Rounded up, so that there is a token when the time has come.
	wait := time.Duration((1-g.tokens(now))*float64(g.pause)) + time.Millisecond
	if wait <= time.Millisecond {
		return 0, nil
	}
	g.delayed = true
	return wait, g.written
}

// wrote notes that the status agrees with a report, and whether it had to be written for that.
func (g *guestShare) wrote(report guestReport, changed bool, now time.Time) {
	before := g.written
	g.written = &report
	if before == nil || !changed || before.equal(report) {
		return
	}
	if g.tokens(now) >= guestBurst {
		g.setPause(guestPause, now)
	} else if g.delayed {
		g.setPause(min(2*g.pause, maxGuestPause), now)
	}
	g.delayed = false
	g.bucket.ReserveN(now, 1)
}

func (g *guestShare) tokens(now time.Time) float64 {
	if g.bucket == nil {
		g.pause, g.bucket = guestPause, rate.NewLimiter(rate.Every(guestPause), guestBurst)
	}
	return g.bucket.TokensAt(now)
}

func (g *guestShare) setPause(pause time.Duration, now time.Time) {
	g.pause = pause
	g.bucket.SetLimitAt(now, rate.Every(pause))
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

// noteOmitted tells, once in the life of a Pod, that the guest reports more than the status takes.
func (s *scope) noteOmitted() {
	if s.omitted == 0 || s.memory.toldOmitted {
		return
	}
	s.memory.toldOmitted = true
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
