// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package pull lets exporters read the disks of running guests. An exporter runs in the namespace of a tenant, and does
// not reach the agent. So the agent connects to it, keeps a few connections that are not used yet, and connects each
// one that the exporter begins to use to the NBD server of the guest's QEMU. What is transferred is not interpreted:
// what an exporter sends only reaches the QEMU of its own tenant.
//
// docs/adr/0090 has the reasons.
package pull

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/decide/backup"
)

// Pull is a backup whose disks QEMU serves, and the exporter that reads them.
type Pull struct {
	// ID is the backup's.
	ID string
	// Exporter is the Pod to connect to.
	Exporter backup.Exporter
	// Open connects to QEMU.
	Open func(context.Context) (net.Conn, error)
}

// Pulls are those of a node's guests. It is a Runnable of a manager.
type Pulls struct {
	tls    func(serverName string) (*tls.Config, error)
	limits limits
	// attempts limits the attempts of all pulls to connect. Each waits for one at a time, so that they take turns.
	attempts *rate.Limiter

	ctx  context.Context // ends with the process
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	running map[types.UID]*pull
}

// New returns Pulls. config returns the configuration of one connection to the exporter with a name.
func New(config func(serverName string) (*tls.Config, error)) *Pulls {
	ctx, stop := context.WithCancel(context.Background())
	return &Pulls{
		tls: config, limits: defaultLimits, attempts: rate.NewLimiter(defaultLimits.nodeRate, int(defaultLimits.nodeRate)),
		ctx: ctx, stop: stop, running: map[types.UID]*pull{},
	}
}

// Start ends all connections when the context ends.
func (p *Pulls) Start(ctx context.Context) error {
	<-ctx.Done()
	p.stop()
	p.wg.Wait()
	return nil
}

// NeedLeaderElection is false: every agent serves the guests of its node.
func (*Pulls) NeedLeaderElection() bool { return false }

// Serve connects the guest of a Pod to an exporter, until End. It does nothing if it does that already, and ends the
// connections to another exporter.
func (p *Pulls) Serve(pod types.UID, want Pull) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tls == nil || p.ctx.Err() != nil {
		return
	}
	if old := p.running[pod]; old != nil {
		if old.ID == want.ID && old.Exporter == want.Exporter {
			return
		}
		old.stop()
	}
	ctx, stop := context.WithCancel(p.ctx)
	next := newPull(want, p.tls, p.limits, p.attempts, stop)
	p.running[pod] = next
	p.wg.Go(func() { next.run(ctx) })
}

// End ends the connections of a Pod. It does nothing if there are none.
func (p *Pulls) End(pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.running[pod]; old != nil {
		old.stop()
		delete(p.running, pod)
	}
}

// errUnused means that an exporter has closed a connection that it has not used.
var errUnused = errors.New("the exporter has closed a connection without using it")
