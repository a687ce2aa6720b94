// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// change returns a report that differs from those with other numbers.
func change(n int) guestReport {
	return guestReport{connected: true, info: &hypervisor.GuestInfo{OS: hypervisor.GuestOS{Version: fmt.Sprint(n)}}}
}

// A reconcile that starts after the returned delay must get a token, or it would be repeated without a result.
func TestDelayedReportIsWrittenAfterDelay(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	limit := newGuestWriteLimit()
	limit.written(change(-1), true, now)
	for n := range 50 {
		wait, used := limit.delay(change(n), now)
		if wait > 0 {
			if diff := cmp.Diff(*limit.last, *used, cmp.AllowUnexported(guestReport{})); diff != "" {
				t.Errorf("a report other than the written one is used meanwhile: %s", diff)
			}
			now = now.Add(wait)
			if again, _ := limit.delay(change(n), now); again > 0 {
				t.Fatalf("report %d was delayed by %s and is delayed by another %s", n, wait, again)
			}
		}
		limit.written(change(n), true, now)
	}
}

// Only the guest's report is delayed, not what is known from other sources.
func TestDelayedReportDelaysNothingElse(t *testing.T) {
	s := scopeOf(phaseOf("Running"), domainIn(hypervisor.StatePaused, hypervisor.PausedByUser))
	s.guest = &hypervisor.GuestInfo{OS: hypervisor.GuestOS{ID: "new"}}
	s.delayedReport = &guestReport{connected: true, info: &hypervisor.GuestInfo{OS: hypervisor.GuestOS{ID: "old"}}}
	computeStatus(s, nil)
	var kinds []string
	for _, c := range s.VMI.Status.Conditions {
		kinds = append(kinds, fmt.Sprintf("%s=%s", c.Type, c.Status))
	}
	if got := strings.Join(kinds, " "); !strings.Contains(got, "Paused=True") || !strings.Contains(got, "Ready=False") ||
		!strings.Contains(got, "AgentConnected=True") {
		t.Errorf("conditions %s", got)
	}
	if s.VMI.Status.GuestOSInfo.ID != "old" {
		t.Errorf("the operating system is %q", s.VMI.Status.GuestOSInfo.ID)
	}
}

// The guest has the longest names, of characters that take six bytes in JSON, and as many interfaces and addresses as
// possible.
func TestReportIsTruncated(t *testing.T) {
	long := strings.Repeat("<", 256)
	s := connectedGuest("", podNet("default"), podNet("second"))
	s.use(&podCache{}, nil, nil)
	s.guest = &hypervisor.GuestInfo{Omitted: 7, OS: hypervisor.GuestOS{
		ID: long, Name: long, PrettyName: long, Version: long, VersionID: long, KernelRelease: long, KernelVersion: long,
		Machine: long,
	}}
	for i := range 64 {
		g := hypervisor.GuestInterface{Name: long, MAC: fmt.Sprintf("02:00:00:00:01:%02x", i)}
		for j := range 32 {
			g.IPs = append(g.IPs, fmt.Sprintf("2001:db8:ffff:ffff:ffff:ffff:%x:%x", 0xff00+i, 0xff00+j))
		}
		s.guest.Interfaces = append(s.guest.Interfaces, g)
	}
	// The last one is an interface of the spec, which has priority over all others.
	s.guest.Interfaces[63].MAC, s.guest.Interfaces[63].Name = "02:00:00:00:00:01", "enp2s0"
	s.Before = s.VMI.DeepCopy()
	setInterfaces(s)
	setGuestOS(&s.VMI.Status, s.guest)
	text, err := json.Marshal(s.VMI.Status)
	if err != nil {
		t.Fatal(err)
	}
	// What is known from other sources is not counted.
	if len(text) > maxGuestReport+2<<10 {
		t.Errorf("the status has %d bytes", len(text))
	}
	list := s.VMI.Status.Interfaces
	if list[1].InterfaceName != "enp2s0" || len(list) < 4 || s.omitted != 7+64-(len(list)-1) {
		t.Errorf("%d interfaces and %d omitted, the second is %q", len(list), s.omitted, list[1].InterfaceName)
	}
	before := s.VMI.Status.DeepCopy()
	setInterfaces(s)
	if diff := cmp.Diff(before, &s.VMI.Status); diff != "" {
		t.Errorf("the second time: %s", diff)
	}
	s.addTruncatedEvent()
	if len(s.Events) != 1 || s.Events[0].Reason != reasonGuestReportCut {
		t.Errorf("events %v", s.Events)
	}
	// Another agent, or the same one later, derives from the status that the event was recorded.
	s.Before, s.Events = s.VMI.DeepCopy(), nil
	s.addTruncatedEvent()
	if len(s.Events) != 0 {
		t.Errorf("events %v", s.Events)
	}
}

func TestGuestMAC(t *testing.T) {
	s := connectedGuest("", podNet("default"))
	s.guest = &hypervisor.GuestInfo{Interfaces: []hypervisor.GuestInterface{{Name: "a", MAC: "<script>"},
		{Name: "b", MAC: "02:00:00:00:00:ff"}}}
	setInterfaces(s)
	if got := s.VMI.Status.Interfaces; len(got) != 3 || got[1].MAC != "" || got[2].MAC != "02:00:00:00:00:ff" {
		t.Errorf("got %+v", got)
	}
}
