// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

import (
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

func TestSummary(t *testing.T) {
	began := time.Now()
	end := began.Add(4210 * time.Millisecond)
	p := &hypervisor.TransferProgress{
		Memory: hypervisor.TransferAmount{Processed: 1000, BytesPerSecond: 20}, Disk: hypervisor.TransferAmount{Processed: 24, BytesPerSecond: 2},
		Iteration: 3, Throttle: 20,
	}
	known, quick, unknown := &State{Progress: p, MaxDirtyRate: 7}, &State{Progress: p}, &State{}
	for want, got := range map[string]string{
		"4210 ms in total": summary(times{started: began}, unknown, end),
		"4210 ms in total, 1024 bytes transferred in 3 passes, 22 bytes/s, the guest changed up to 7 bytes/s, throttled by 20%": summary(
			times{started: began, paused: began.Add(time.Second)}, known, end),
		"4210 ms in total, 1024 bytes transferred in 3 passes, 22 bytes/s, throttled by 20%": summary(times{started: began}, quick, end),
		"4210 ms in total, downtime 180 ms": summary(
			times{started: began, paused: began.Add(4 * time.Second), resumed: began.Add(4180 * time.Millisecond)}, unknown, end),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
