// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// change is a report that differs from those with other numbers.
func change(n int) guestReport {
	return guestReport{connected: true, info: &hypervisor.GuestInfo{OS: hypervisor.GuestOS{Version: fmt.Sprint(n)}}}
}

// writes lets a guest report something else every time that a step passes, and returns when it was written.
func writes(share *guestShare, from time.Time, total, step time.Duration) []time.Duration {
	var at []time.Duration
	for passed := time.Duration(0); passed < total; passed += step {
		report := change(int(passed / time.Millisecond))
		if wait, _ := share.hold(report, from.Add(passed)); wait > 0 {
			continue
		}
		share.wrote(report, true, from.Add(passed))
		at = append(at, passed)
	}
	return at
}

func quiet(from time.Time) *guestShare {
	share := &guestShare{}
	share.wrote(change(-1), true, from)
	return share
}

func TestGuestThatChangesWithoutEndIsWrittenEverMoreRarely(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	share := quiet(start)
	at := writes(share, start, 20*time.Minute, time.Second)
	if len(at) > guestBurst+8 {
		t.Errorf("%d writes in 20 minutes: %v", len(at), at)
	}
	var gaps []int
	for i := guestBurst; i < len(at); i++ {
		gaps = append(gaps, int((at[i] - at[i-1]).Seconds()))
	}
	for i := 1; i < len(gaps); i++ {
		if gaps[i] < gaps[i-1]-2 || gaps[i] > int(maxGuestPause.Seconds())+2 {
			t.Errorf("the pauses, in seconds: %v", gaps)
		}
	}
	if first := gaps[0]; first > int(guestPause.Seconds())+1 {
		t.Errorf("the first that waits, waits %ds", first)
	}
	// It is forgiven.
	later := start.Add(2 * time.Hour)
	if at := writes(share, later, time.Duration(guestBurst)*time.Second, time.Second); len(at) != guestBurst {
		t.Errorf("after a quiet hour: %v", at)
	}
	if share.pause != guestPause {
		t.Errorf("the pause is still %s", share.pause)
	}
}

func TestGuestThatChangesNowAndThenNeverWaits(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if at := writes(quiet(start), start, time.Hour, 15*time.Second); len(at) != 240 {
		t.Errorf("%d of 240 changes were written at once", len(at))
	}
}

// A reconcile that comes when it was told to finds a token, whatever the pause: else it would be repeated for nothing.
func TestHeldReportIsWrittenWhenItsTimeHasCome(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	share := quiet(now)
	for n := range 50 {
		wait, held := share.hold(change(n), now)
		if wait > 0 {
			if diff := cmp.Diff(*share.written, *held, cmp.AllowUnexported(guestReport{})); diff != "" {
				t.Errorf("another report than the written one is used meanwhile: %s", diff)
			}
			now = now.Add(wait)
			if again, _ := share.hold(change(n), now); again > 0 {
				t.Fatalf("report %d waited for %s and is to wait another %s", n, wait, again)
			}
		}
		share.wrote(change(n), true, now)
	}
}

// What the guest reports is held back, and what is known from elsewhere is not.
func TestHeldReportKeepsNothingElseBack(t *testing.T) {
	s := seen(phase("Running"), domainIn(hypervisor.StatePaused, hypervisor.PausedByUser))
	s.guest = &hypervisor.GuestInfo{OS: hypervisor.GuestOS{ID: "new"}}
	s.held = &guestReport{connected: true, info: &hypervisor.GuestInfo{OS: hypervisor.GuestOS{ID: "old"}}}
	computeStatus(s, nil)
	var kinds []string
	for _, c := range s.vmi.Status.Conditions {
		kinds = append(kinds, fmt.Sprintf("%s=%s", c.Type, c.Status))
	}
	if got := strings.Join(kinds, " "); !strings.Contains(got, "Paused=True") || !strings.Contains(got, "Ready=False") || !strings.Contains(got, "AgentConnected=True") {
		t.Errorf("conditions %s", got)
	}
	if s.vmi.Status.GuestOSInfo.ID != "old" {
		t.Errorf("the system is %q", s.vmi.Status.GuestOSInfo.ID)
	}
}

// A guest with the longest names, in letters that take six bytes in JSON, on all interfaces and with all addresses.
func TestReportIsCut(t *testing.T) {
	long := strings.Repeat("<", 256)
	s := connectedGuest("", podNet("default"), podNet("second"))
	s.memory = &podMemory{}
	s.guest = &hypervisor.GuestInfo{Omitted: 7, OS: hypervisor.GuestOS{
		ID: long, Name: long, PrettyName: long, Version: long, VersionID: long, KernelRelease: long, KernelVersion: long, Machine: long,
	}}
	for i := range 64 {
		g := hypervisor.GuestInterface{Name: long, MAC: fmt.Sprintf("02:00:00:00:01:%02x", i)}
		for j := range 32 {
			g.IPs = append(g.IPs, fmt.Sprintf("2001:db8:ffff:ffff:ffff:ffff:%x:%x", 0xff00+i, 0xff00+j))
		}
		s.guest.Interfaces = append(s.guest.Interfaces, g)
	}
	// The last one is an interface of the spec's: it comes before all others.
	s.guest.Interfaces[63].MAC, s.guest.Interfaces[63].Name = "02:00:00:00:00:01", "enp2s0"
	setInterfaces(s)
	setGuestOS(&s.vmi.Status, s.guest)
	text, err := json.Marshal(s.vmi.Status)
	if err != nil {
		t.Fatal(err)
	}
	// What is known from elsewhere comes on top.
	if len(text) > maxGuestReport+2<<10 {
		t.Errorf("the status has %d bytes", len(text))
	}
	list := s.vmi.Status.Interfaces
	if list[1].InterfaceName != "enp2s0" || len(list) < 4 || s.omitted != 7+64-(len(list)-1) {
		t.Errorf("%d interfaces and %d omitted, the second is %q", len(list), s.omitted, list[1].InterfaceName)
	}
	before := s.vmi.Status.DeepCopy()
	setInterfaces(s)
	if diff := cmp.Diff(before, &s.vmi.Status); diff != "" {
		t.Errorf("the second time: %s", diff)
	}
	s.noteOmitted()
	s.noteOmitted()
	if len(s.events) != 1 || s.events[0].reason != reasonGuestReportCut {
		t.Errorf("events %v", s.events)
	}
}

func TestHardwareAddressOfAGuestIsOne(t *testing.T) {
	s := connectedGuest("", podNet("default"))
	s.guest = &hypervisor.GuestInfo{Interfaces: []hypervisor.GuestInterface{{Name: "a", MAC: "<script>"}, {Name: "b", MAC: "02:00:00:00:00:ff"}}}
	setInterfaces(s)
	if got := s.vmi.Status.Interfaces; len(got) != 3 || got[1].MAC != "" || got[2].MAC != "02:00:00:00:00:ff" {
		t.Errorf("got %+v", got)
	}
}
