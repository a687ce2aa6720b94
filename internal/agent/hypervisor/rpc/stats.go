// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

const (
	// statsTimeout bounds a request for statistics, with the connection that it needs.
	statsTimeout = 10 * time.Second
	// dirtyRateSeconds is how long QEMU observes the guest's memory for the dirty rate. KubeVirt's value.
	dirtyRateSeconds = 1
)

// Stats requests the statistics of a running domain, over a connection of its own: libvirt's C library allocates memory
// for as many devices as the launcher claims to have. With dirtyRate it starts a measurement of the dirty rate, whose
// result the next request returns.
func (c *Conn) Stats(ctx context.Context, domain string, dirtyRate bool) (*hypervisor.Stats, error) {
	stats := &hypervisor.Stats{}
	err := c.within(ctx, statsTimeout, domain, "read the statistics",
		func(ctx context.Context, client *libvirtwire.Client, d libvirtwire.Domain) error {
			groups := libvirtwire.StatsCPU | libvirtwire.StatsBalloon | libvirtwire.StatsVCPU | libvirtwire.StatsInterface |
				libvirtwire.StatsBlock | libvirtwire.StatsDirtyRate
			if err := client.Stats(ctx, d.Name, groups, stats.Add); err != nil {
				return err
			}
			if dirtyRate {
				// It fails if the guest migrates, or QEMU is too old.
				if err := client.StartDirtyRate(ctx, d, dirtyRateSeconds); err != nil {
					log.Log.V(5).Info("Cannot measure the dirty rate", "pod", c.pod.UID, "error", err.Error())
				}
			}
			return nil
		})
	if err != nil {
		return nil, err
	}
	return stats, nil
}

// Usage returns what the guest agent last reported about the use of the guest, or nil. Guest requests it from time to
// time.
func (c *Conn) Usage() *hypervisor.GuestUsage { return c.guest.usage.Load() }

// usage requests the use of the guest. What the agent refuses is omitted: a frozen guest reports no file systems, and
// agents before version 10 no load.
func (g guest) usage(ctx context.Context) *hypervisor.GuestUsage {
	list, _ := g.filesystems(ctx)
	usage := hypervisor.NewGuestUsage(time.Now(), list.Items)
	// Source: QEMU qga/qapi-schema.json, GuestLoadAverage.
	var load struct {
		One     float64 `json:"load1m"`
		Five    float64 `json:"load5m"`
		Fifteen float64 `json:"load15m"`
	}
	if err := g.get(ctx, "guest-get-load", &load); err == nil {
		usage.Load = &[3]float64{load.One, load.Five, load.Fifteen}
	}
	return usage
}
