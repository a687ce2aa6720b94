// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package dhcp serves DHCP to the guest on the bridges that virt-broker creates in the Pod. It only needs permission to bind to
// ports below 1024.
package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher/podnet"
)

// resubscribeDelay is the delay before watching links again after the kernel dropped the subscription.
const resubscribeDelay = 100 * time.Millisecond

// Serve serves DHCP on each bridge that belongs to one of the interfaces while the bridge exists, until ctx is done.
func Serve(ctx context.Context, interfaces []Interface, snapshot *podnet.Snapshot) error {
	if len(interfaces) == 0 {
		return nil
	}
	servers := &servers{interfaces: interfaces, snapshot: snapshot, running: map[int]context.CancelFunc{}}
	defer servers.stopAll()
	for {
		err := servers.watch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		logr.FromContextOrDiscard(ctx).Info("Watching for bridges again", "reason", err.Error())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(resubscribeDelay):
		}
	}
}

// servers are the running servers by the index of their bridge.
type servers struct {
	interfaces []Interface
	snapshot   *podnet.Snapshot
	running    map[int]context.CancelFunc
}

func (s *servers) watch(ctx context.Context) error {
	updates, done := make(chan netlink.LinkUpdate), make(chan struct{})
	defer close(done)
	// The library closes the channel when it stops, and passes the reason to the callback.
	failed := make(chan error, 1)
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
		ErrorCallback: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch the Pod's links: %w", err)
	}
	// After subscribing, so that no link is missed. The library's option for this needs CAP_NET_ADMIN, as it also sends the
	// request to the multicast group.
	existing, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list the Pod's links: %w", err)
	}
	for _, link := range existing {
		s.appeared(ctx, link)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case update, open := <-updates:
			if !open {
				select {
				case err := <-failed:
					return fmt.Errorf("watch the Pod's links: %w", err)
				default:
					return errors.New("watch the Pod's links: the subscription was closed")
				}
			}
			s.handle(ctx, update)
		}
	}
}

func (s *servers) handle(ctx context.Context, update netlink.LinkUpdate) {
	attrs := update.Attrs()
	// There are messages of family AF_BRIDGE for bridge ports, also when a port is only removed from a bridge.
	if update.Family == unix.AF_BRIDGE {
		return
	}
	if update.Header.Type != unix.RTM_DELLINK {
		s.appeared(ctx, update.Link)
		return
	}
	if stop, running := s.running[attrs.Index]; running {
		stop()
		delete(s.running, attrs.Index)
	}
}

func (s *servers) appeared(ctx context.Context, link netlink.Link) {
	if _, running := s.running[link.Attrs().Index]; !running && link.Type() == "bridge" {
		s.start(ctx, link)
	}
}

func (s *servers) start(ctx context.Context, bridge netlink.Link) {
	name := bridge.Attrs().Name
	guestInterface, podInterface, ok := match(name, s.interfaces, s.snapshot)
	if !ok {
		return
	}
	log := logr.FromContextOrDiscard(ctx).WithValues("bridge", name)
	lease, err := newLease(guestInterface, podInterface, s.snapshot)
	if err != nil {
		log.Error(err, "No DHCP on this bridge")
		return
	}
	ctx, cancel := context.WithCancel(logr.NewContext(ctx, log))
	s.running[bridge.Attrs().Index] = cancel
	// With masquerade only the guest is on the bridge; with the bridge binding the other port leads to a network.
	var allowed func(net.HardwareAddr) bool
	if guestInterface.Binding == Bridge {
		allowed = func(mac net.HardwareAddr) bool { return onGuestPort(bridge.Attrs().Index, mac) }
	}
	if lease.Address.IsValid() {
		go lease.serve4(ctx, name, allowed)
	}
	if lease.IPv6.IsValid() {
		go lease.serve6(ctx, bridge)
	}
}

func (s *servers) stopAll() {
	for _, stop := range s.running {
		stop()
	}
}
