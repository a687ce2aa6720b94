// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

func realtime(mask string) *guest {
	return numa("8Mi", 4, 0, 1, 4, 5).cpu(func(c *v1.CPU) { c.Realtime = &v1.Realtime{Mask: mask} })
}

func TestRealtime(t *testing.T) {
	got := realtime("").build(t)
	if got.Features.PMU == nil || got.Features.PMU.State != "off" {
		t.Errorf("the PMU is %+v", got.Features.PMU)
	}
	if got.MemoryBacking.MemoryNosharepages == nil {
		t.Error("pages may be merged with those of others")
	}
	if got.CPUTune.VCPUSched != nil {
		t.Error("the domain has priorities that libvirtd may not set")
	}
	realtime("").cpu(func(c *v1.CPU) { c.DedicatedCPUPlacement, c.NUMA = false, nil }).
		expectRefused(t, "spec.domain.cpu.realtime", "dedicatedCpuPlacement")
	realtime("^0-1").expectRefused(t, "spec.domain.cpu.realtime.mask", "0-3,^1")
}

func TestRealtimeVCPUs(t *testing.T) {
	for mask, want := range map[string][]uint{
		"": {0, 1, 2, 3}, " ": {0, 1, 2, 3}, "0": {0}, "1-2": {1, 2}, "0-3,^1": {0, 2, 3}, "^1, 0-1": {0}, "3,1": {1, 3}, "2-4000000": {2, 3},
		"9": nil, "^1": nil, "1-0": nil, "x": nil, "0,,1": nil, "-1": nil, "^0-1,2": nil, "0-99999999999": nil,
	} {
		got, err := domain.RealtimeVCPUs(realtime(mask).vmi)
		expectEqual(t, got, want)
		if (err == nil) != (want != nil) {
			t.Errorf("mask %q: %v", mask, err)
		}
	}
	if got, err := domain.RealtimeVCPUs(makeGuest().vmi); got != nil || err != nil {
		t.Errorf("a plain guest has %v, %v", got, err)
	}
}
