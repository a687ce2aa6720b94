// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

func TestBalloon(t *testing.T) {
	balloon := func(reporting string, period uint) *libvirtxml.DomainMemBalloon {
		balloon := &libvirtxml.DomainMemBalloon{Model: "virtio-non-transitional", FreePageReporting: reporting}
		if period > 0 {
			balloon.Stats = &libvirtxml.DomainMemBalloonStats{Period: period}
		}
		return balloon
	}
	for name, tc := range map[string]struct {
		guest *guest
		want  *libvirtxml.DomainMemBalloon
	}{
		"default":         {makeGuest(), balloon("on", 10)},
		"no statistics":   {makeGuest().on(func(f *domain.Facts) { f.MemBalloonStatsPeriod = 0 }), balloon("on", 0)},
		"no reporting":    {makeGuest().annotate(v1.FreePageReportingDisabledAnnotation, "true"), balloon("off", 10)},
		"reporting":       {makeGuest().annotate(v1.FreePageReportingDisabledAnnotation, "false"), balloon("on", 10)},
		"huge pages":      {makeGuest().domainSpec(guestMemory("64Mi", "2Mi")), balloon("off", 10)},
		"CPUs of its own": {dedicated(1, 1, 0), balloon("off", 10)},
		"none": {makeGuest().devices(func(d *v1.Devices) { d.AutoattachMemBalloon = ptr.To(false) }),
			&libvirtxml.DomainMemBalloon{Model: "none"}},
	} {
		t.Run(name, func(t *testing.T) { expectEqual(t, tc.guest.build(t).Devices.MemBalloon, tc.want) })
	}
}
