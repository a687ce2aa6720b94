// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"strconv"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// clockReset sets the guest's clock to UTC at every start.
const clockReset = "reset"

// configureClock sets the guest's clock, by default UTC, and its timers.
//
// It adds no timer tsc. KubeVirt adds one with a frequency that several nodes support (status.topologyHints), so that a
// guest that depends on the frequency can be migrated. Vireo does not look for such a frequency: the guest has its
// node's, and the condition LiveMigratable reports why it cannot be migrated.
func configureClock(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	domain.Clock = &libvirtxml.DomainClock{Offset: "utc"}
	clock := vmi.Spec.Domain.Clock
	if clock == nil {
		return nil
	}
	switch {
	case clock.Timezone != nil:
		domain.Clock.Offset, domain.Clock.TimeZone = "timezone", string(*clock.Timezone)
	case clock.UTC != nil && clock.UTC.OffsetSeconds != nil:
		domain.Clock.Offset, domain.Clock.Basis = "variable", "utc"
		domain.Clock.Adjustment = strconv.Itoa(*clock.UTC.OffsetSeconds)
	case clock.UTC != nil:
		domain.Clock.Adjustment = clockReset
	}
	if clock.Timer != nil {
		domain.Clock.Timer = timers(clock.Timer)
	}
	return nil
}

func timers(in *v1.Timer) []libvirtxml.DomainTimer {
	var out []libvirtxml.DomainTimer
	add := func(name string, present *bool, tickPolicy, track string) {
		timer := libvirtxml.DomainTimer{Name: name, Present: yesNo(enabled(present))}
		// libvirt refuses a policy for an absent timer.
		if enabled(present) {
			timer.TickPolicy, timer.Track = tickPolicy, track
		}
		out = append(out, timer)
	}
	if in.RTC != nil {
		add("rtc", in.RTC.Enabled, string(in.RTC.TickPolicy), string(in.RTC.Track))
	}
	if in.PIT != nil {
		add("pit", in.PIT.Enabled, string(in.PIT.TickPolicy), "")
	}
	if in.KVM != nil {
		add("kvmclock", in.KVM.Enabled, "", "")
	}
	if in.HPET != nil {
		add("hpet", in.HPET.Enabled, string(in.HPET.TickPolicy), "")
	}
	if in.Hyperv != nil {
		add("hypervclock", in.Hyperv.Enabled, "", "")
	}
	return out
}
