// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtwire

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
)

// Procedures of statistics (src/remote/remote_protocol.x).
const (
	procGetAllDomainStats  = 344
	procStartDirtyRateCalc = 427
)

// StatsGroups are groups of statistics (virDomainStatsTypes).
type StatsGroups uint32

// Groups of statistics.
const (
	StatsCPU       StatsGroups = 1 << 1
	StatsBalloon   StatsGroups = 1 << 2
	StatsVCPU      StatsGroups = 1 << 3
	StatsInterface StatsGroups = 1 << 4
	StatsBlock     StatsGroups = 1 << 5
	StatsDirtyRate StatsGroups = 1 << 9
)

// Flags of virConnectGetAllDomainStats: domains that run or are paused, without waiting for a job of a domain. With that flag libvirt
// omits what it would have to wait for.
const statsFlags = 1<<4 | 1<<5 | 1<<29

// Kinds of a typed parameter, besides those in migrate.go.
const (
	paramUInt    = 2
	paramLLong   = 3
	paramDouble  = 5
	paramBoolean = 6
)

// Stats calls a function with each statistic of the running domain with a name: its name, as net.0.rx.bytes, and its value, which is
// a number or a text. It requests those of all domains in one call, because the daemon of a launcher has only one.
func (c *Client) Stats(ctx context.Context, domain string, groups StatsGroups, visit func(name string, number float64, text string)) error {
	var args encoder
	args.u32(0) // no list of domains: all
	args.u32(uint32(groups))
	args.u32(statsFlags)
	body, err := c.call(ctx, procGetAllDomainStats, args.buf)
	if err != nil {
		return err
	}
	d := decoder{buf: body}
	for records := d.u32(); records > 0 && d.err == nil; records-- {
		is := d.domain().Name == domain
		for params := d.u32(); params > 0 && d.err == nil; params-- {
			name, number, text := d.param()
			if is && d.err == nil {
				visit(name, number, text)
			}
		}
	}
	if d.err != nil {
		return fmt.Errorf("read the statistics: %w", d.err)
	}
	return nil
}

// param reads a typed parameter.
func (d *decoder) param() (name string, number float64, text string) {
	name = d.str()
	switch kind := d.u32(); kind {
	case paramInt, paramBoolean:
		number = float64(d.i32())
	case paramUInt:
		number = float64(d.u32())
	case paramLLong:
		number = float64(int64(d.u64()))
	case paramULong:
		number = float64(d.u64())
	case paramDouble:
		number = math.Float64frombits(d.u64())
	case paramString:
		text = d.str()
	default:
		if d.err == nil {
			d.err = fmt.Errorf("a parameter has the unknown type %d", kind)
		}
	}
	return name, number, text
}

func (d *decoder) u64() uint64 {
	b := d.take(8)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// StartDirtyRate starts a measurement of how fast the guest changes its memory. The result is in StatsDirtyRate afterwards.
func (c *Client) StartDirtyRate(ctx context.Context, domain Domain, seconds int32) error {
	var args encoder
	args.domain(domain)
	args.i32(seconds)
	args.u32(0)
	_, err := c.call(ctx, procStartDirtyRateCalc, args.buf)
	return err
}
