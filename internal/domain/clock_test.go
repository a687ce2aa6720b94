// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestClock(t *testing.T) {
	for name, tc := range map[string]struct {
		clock *v1.Clock
		want  libvirtxml.DomainClock
	}{
		"default":  {nil, libvirtxml.DomainClock{Offset: "utc"}},
		"utc":      {&v1.Clock{ClockOffset: v1.ClockOffset{UTC: &v1.ClockOffsetUTC{}}}, libvirtxml.DomainClock{Offset: "utc", Adjustment: "reset"}},
		"offset":   {clockAt(v1.ClockOffset{UTC: &v1.ClockOffsetUTC{OffsetSeconds: ptr.To(-3600)}}), libvirtxml.DomainClock{Offset: "variable", Basis: "utc", Adjustment: "-3600"}},
		"timezone": {clockAt(v1.ClockOffset{Timezone: ptr.To(v1.ClockOffsetTimezone("Europe/Rome"))}), libvirtxml.DomainClock{Offset: "timezone", TimeZone: "Europe/Rome"}},
		"timers": {&v1.Clock{Timer: &v1.Timer{
			HPET: &v1.HPETTimer{Enabled: ptr.To(false), TickPolicy: v1.HPETTickPolicyDelay},
			PIT:  &v1.PITTimer{TickPolicy: v1.PITTickPolicyDiscard}, KVM: &v1.KVMTimer{Enabled: ptr.To(true)},
			RTC:    &v1.RTCTimer{TickPolicy: v1.RTCTickPolicyCatchup, Track: v1.TrackGuest},
			Hyperv: &v1.HypervTimer{},
		}}, libvirtxml.DomainClock{Offset: "utc", Timer: []libvirtxml.DomainTimer{
			{Name: "rtc", Present: "yes", TickPolicy: "catchup", Track: "guest"},
			{Name: "pit", Present: "yes", TickPolicy: "discard"},
			{Name: "kvmclock", Present: "yes"},
			{Name: "hpet", Present: "no"},
			{Name: "hypervclock", Present: "yes"},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			expectEqual(t, makeGuest().domainSpec(func(d *v1.DomainSpec) { d.Clock = tc.clock }).build(t).Clock, &tc.want)
		})
	}
}

func clockAt(offset v1.ClockOffset) *v1.Clock { return &v1.Clock{ClockOffset: offset} }
