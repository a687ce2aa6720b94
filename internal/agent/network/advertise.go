// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/mdlayher/ndp"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// routerSolicitation is a type of ICMPv6 messages (RFC 4861, 4.1).
	routerSolicitation = 133
	hopLimit           = 64
	// advertiseInterval is the interval of unsolicited advertisements. A guest keeps the gateway for routerLifetime (at
	// most 9000 s) without any, so that it does not notice a restart of the agent.
	advertiseInterval = 5 * time.Minute
	routerLifetime    = 9000 * time.Second
	// responseInterval limits the rate of responses to a guest's solicitations; the kernel drops what is not read.
	responseInterval = time.Second
)

var allNodes = net.IPAddr{IP: net.ParseIP("ff02::1")}

// Router is the guest's IPv6 gateway: a bridge in the Pod.
type Router struct {
	// Conn is a socket for router discovery on the bridge. The broker opens it, which has the permission to.
	Conn net.PacketConn
	// MAC and MTU are those of the bridge.
	MAC net.HardwareAddr
	MTU int
}

// Advertise sends router advertisements to the guest until ctx is done: its gateway is on the bridge, and it gets an
// address from DHCPv6, which itself has no option for a gateway. The launcher has no permission to send these messages.
// Advertise closes the socket.
func Advertise(ctx context.Context, router Router, network netip.Prefix) error {
	stop := context.AfterFunc(ctx, func() { _ = router.Conn.Close() })
	defer stop()
	defer func() { _ = router.Conn.Close() }()
	message, err := routerMessage(router, network)
	if err != nil {
		return fmt.Errorf("make the advertisement of the guest's gateway: %w", err)
	}
	return serveSolicitations(ctx, router.Conn, message)
}

// serveSolicitations advertises now, after each solicitation, and periodically.
func serveSolicitations(ctx context.Context, conn net.PacketConn, message []byte) error {
	log := logr.FromContextOrDiscard(ctx)
	buf := make([]byte, 1500)
	var sent time.Time
	for next := time.Now(); ; {
		if !time.Now().Before(next) {
			sent = time.Now()
			if _, err := conn.WriteTo(message, &allNodes); err != nil && ctx.Err() == nil {
				// The bridge has no guest yet, or duplicate detection of its own address is not finished.
				log.V(1).Info("Cannot advertise the guest's gateway", "reason", err.Error())
			}
			next = time.Now().Add(advertiseInterval)
		}
		if err := conn.SetReadDeadline(next); err != nil {
			return ignoreClosed(err)
		}
		n, _, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		var timeout net.Error
		if err != nil && (!errors.As(err, &timeout) || !timeout.Timeout()) {
			return fmt.Errorf("listen for the guest's router solicitations: %w", err)
		}
		if err == nil && n > 0 && buf[0] == routerSolicitation {
			if !pause(ctx, responseInterval-time.Since(sent)) {
				return nil
			}
			next = time.Now()
		}
	}
}

// pause waits, and returns false if ctx is done first.
func pause(ctx context.Context, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// routerMessage returns the advertisement of a bridge as the gateway of a network. Addresses and all other
// configuration come from DHCPv6.
func routerMessage(bridge Router, network netip.Prefix) ([]byte, error) {
	return ndp.MarshalMessage(&ndp.RouterAdvertisement{
		CurrentHopLimit: hopLimit, ManagedConfiguration: true, OtherConfiguration: true, RouterLifetime: routerLifetime,
		Options: []ndp.Option{
			&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: bridge.MAC}, ndp.NewMTU(uint32(bridge.MTU)),
			&ndp.PrefixInformation{
				PrefixLength: uint8(network.Bits()), Prefix: network.Masked().Addr(), OnLink: true,
				ValidLifetime: ndp.Infinity, PreferredLifetime: ndp.Infinity,
			},
		},
	})
}

const (
	// firstAdvertiseRetry and maxAdvertiseRetry bound the delay after a failure, which doubles each time.
	firstAdvertiseRetry = time.Second
	maxAdvertiseRetry   = time.Minute
)

// Advertisement is what Advertisers run for one Pod. It is run until its context is done, and again after a failure.
type Advertisement func(ctx context.Context) error

// AdvertiseFor returns the Advertisement of a plan's gateway. open opens its socket, and returns none if there is
// nothing to advertise.
func AdvertiseFor(plan Plan, open func(ctx context.Context, podInterface string) (Router, error)) Advertisement {
	return func(ctx context.Context) error {
		for i := range plan.Interfaces {
			planned := &plan.Interfaces[i]
			if planned.Binding != Masquerade {
				continue
			}
			router, err := open(ctx, planned.PodInterface)
			if err != nil || router.Conn == nil {
				return err
			}
			return Advertise(ctx, router, planned.IPv6) // there is one Pod network
		}
		return nil
	}
}

// Advertisers runs at most one Advertisement for each Pod.
type Advertisers struct {
	log logr.Logger
	// pause waits, and returns false if the context is done first.
	pause func(context.Context, time.Duration) bool

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	running map[types.UID]context.CancelFunc
}

// NewAdvertisers returns Advertisers that run until the context of Start is done.
func NewAdvertisers(log logr.Logger) *Advertisers {
	ctx, cancel := context.WithCancel(logr.NewContext(context.Background(), log))
	return &Advertisers{log: log, pause: pause, ctx: ctx, cancel: cancel, running: map[types.UID]context.CancelFunc{}}
}

// Start waits until the context is done, and then until all advertisements have stopped.
func (a *Advertisers) Start(ctx context.Context) error {
	<-ctx.Done()
	// Under the lock, so that Run does not add an advertisement during the wait.
	a.mu.Lock()
	a.cancel()
	a.mu.Unlock()
	a.wg.Wait()
	return nil
}

// Run runs an Advertisement for a Pod, until Forget. It does nothing if the Pod has one already, even one that has
// returned.
func (a *Advertisers) Run(pod types.UID, advertisement Advertisement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, found := a.running[pod]; found || a.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(a.ctx)
	a.running[pod] = cancel
	a.wg.Go(func() { a.run(ctx, pod, advertisement) })
}

// Forget stops the advertisement of a Pod. It does not wait.
func (a *Advertisers) Forget(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel, found := a.running[pod]; found {
		cancel()
		delete(a.running, pod)
	}
}

func (a *Advertisers) run(ctx context.Context, pod types.UID, advertisement Advertisement) {
	for retry := firstAdvertiseRetry; ; retry = min(2*retry, maxAdvertiseRetry) {
		err := advertisement(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		a.log.Error(err, "The guest gets no IPv6 gateway for now", "pod", pod, "retryIn", retry.String())
		if !a.pause(ctx, retry) {
			return
		}
	}
}
