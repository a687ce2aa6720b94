// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

func TestFigures(t *testing.T) {
	began := time.Now()
	end := began.Add(4210 * time.Millisecond)
	p := &hypervisor.CopyProgress{
		Memory: hypervisor.CopyAmount{Processed: 1000, BytesPerSecond: 20}, Disk: hypervisor.CopyAmount{Processed: 24, BytesPerSecond: 2},
		Iteration: 3, Throttle: 20,
	}
	known, quick, unknown := &CopyState{Progress: p, Dirtied: 7}, &CopyState{Progress: p}, &CopyState{}
	for want, got := range map[string]string{
		"4210 ms in all": figures(times{began: began}, unknown, end),
		"4210 ms in all, 1024 bytes copied in 3 passes, 22 bytes/s, the guest changed up to 7 bytes/s, slowed down by 20%": figures(
			times{began: began, stopped: began.Add(time.Second)}, known, end),
		"4210 ms in all, 1024 bytes copied in 3 passes, 22 bytes/s, slowed down by 20%": figures(times{began: began}, quick, end),
		"4210 ms in all, stood still for 180 ms": figures(
			times{began: began, stopped: began.Add(4 * time.Second), ran: began.Add(4180 * time.Millisecond)}, unknown, end),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
