// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unsafe" // the sizes only
)

func TestStats(t *testing.T) {
	s := &Stats{}
	s.Add("cpu.time", 7, "")
	s.Add("balloon.usable", 8, "")
	s.Add("vcpu.1.state", 0, "")
	s.Add("vcpu.1.time", 9, "")
	s.Add("net.0.name", 0, "tap0")
	s.Add("net.0.rx.bytes", 10, "")
	s.Add("block.2.fl.reqs", 11, "")
	s.Add("block.2.fl.other", 12, "")
	s.Add("vcpu.x.time", 13, "")
	s.Add("vcpu.-1.time", 13, "")
	for name, tc := range map[string]struct {
		values *Values
		stat   Stat
		want   float64
	}{
		"cpu.time": {&s.Domain, CPUTime, 7}, "balloon.usable": {&s.Guest, BalloonUsable, 8}, "state": {&s.VCPUs[1], VCPUState, 0},
		"vcpu.time": {&s.VCPUs[1], VCPUTime, 9}, "rx.bytes": {&s.NICs[0].Values, RxBytes, 10}, "fl.reqs": {&s.Disks[2].Values, FlushRequests, 11},
	} {
		if got, ok := tc.values.Get(tc.stat); !ok || got != tc.want {
			t.Errorf("%s: got %v, %t", name, got, ok)
		}
	}
	for name, unset := range map[string]bool{
		"cpu.user": hasStat(&s.Domain, CPUUser), "vcpu.0.time": hasStat(&s.VCPUs[0], VCPUTime), "fl.times": hasStat(&s.Disks[2].Values, FlushTimes),
	} {
		if unset {
			t.Errorf("%s is set", name)
		}
	}
	if s.NICs[0].Name != "tap0" || len(s.VCPUs) != 2 || len(s.Disks) != 3 {
		t.Errorf("got %+v", s)
	}
}

func hasStat(v *Values, stat Stat) bool {
	_, ok := v.Get(stat)
	return ok
}

func TestStatsOfAHostileLauncher(t *testing.T) {
	s := &Stats{}
	long := strings.Repeat("\x1b\u202eüx", 10000)
	for _, i := range []int{0, maxStatNICs - 1, maxStatNICs, maxStatDisks, maxStatVCPUs - 1, maxStatVCPUs, math.MaxInt32,
		math.MaxInt64} {
		for _, name := range []string{"vcpu.%d.time", "net.%d.tx.drop", "net.%d.name", "block.%d.wr.times", "block.%d.name",
			long + ".%d.time"} {
			s.Add(fmt.Sprintf(name, i), float64(i), long)
		}
	}
	if len(s.VCPUs) != maxStatVCPUs || len(s.NICs) != maxStatNICs || len(s.Disks) > maxStatDisks {
		t.Errorf("%d vCPUs, %d interfaces, %d disks", len(s.VCPUs), len(s.NICs), len(s.Disks))
	}
	if name := s.NICs[0].Name; len(name) > maxDeviceName || strings.ContainsAny(name, "\x1b\u202e") {
		t.Errorf("the name is %q", name)
	}
	for _, value := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, math.MaxFloat64} {
		s.Add("cpu.user", value, "")
		if hasStat(&s.Domain, CPUUser) {
			t.Errorf("%v is a statistic", value)
		}
	}
}

// The constants that the agent's memory limit is computed from.
func TestSizesOfStats(t *testing.T) {
	if size := unsafe.Sizeof(Values{}); size > valuesBytes {
		t.Errorf("Values has %d bytes, not %d", size, valuesBytes)
	}
	if size := unsafe.Sizeof(Device{}); size > valuesBytes+16 {
		t.Errorf("Device has %d bytes, not %d", size, valuesBytes+16)
	}
	long := strings.Repeat("ü", 10000)
	many := make([]GuestFilesystem, 1000)
	for i := range many {
		many[i] = GuestFilesystem{Name: long, Mountpoint: long, Type: long, Disks: make([]GuestDisk, 10)}
	}
	u := NewGuestUsage(time.Time{}, many)
	size := 0
	for i := range u.Filesystems {
		f := &u.Filesystems[i]
		size += len(f.Name) + len(f.Mountpoint) + len(f.Type) + int(unsafe.Sizeof(*f))
		if f.Disks != nil {
			t.Error("the disks of a file system are kept")
		}
	}
	if len(u.Filesystems) != maxUsageFilesystems || size > MaxUsage {
		t.Errorf("%d file systems have %d bytes, not %d", len(u.Filesystems), size, MaxUsage)
	}
}
