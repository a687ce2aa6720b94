// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	plans "github.com/vireo-project/vireo/internal/agent/network"
)

// gatewayOf waits until the guest's kernel has a default route for IPv6, which it takes from an advertisement.
func (w world) gatewayOf(t *testing.T) (gateway string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		inside(t, w.guest, func() error {
			routes, err := netlink.RouteListFiltered(unix.AF_INET6, &netlink.Route{Protocol: unix.RTPROT_RA},
				netlink.RT_FILTER_PROTOCOL)
			for _, route := range routes {
				if route.Gw != nil {
					gateway = route.Gw.String()
				}
			}
			return err
		})
		if gateway != "" {
			return gateway
		}
	}
	t.Fatal("the guest has no gateway")
	return ""
}

func TestAdvertise(t *testing.T) {
	w := newWorld(t)
	plan := masqueradePlan(t)
	ensure(t, w, plan)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	socket, result, err := OpenRouter(w.pod, "k6t-eth0")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FilePacketConn(socket)
	if err := errors.Join(err, socket.Close()); err != nil {
		t.Fatal(err)
	}
	router := plans.Router{Conn: conn, MAC: result.MAC, MTU: result.MTU}
	go func() { done <- plans.Advertise(ctx, router, plan.Interfaces[0].IPv6) }()
	w.connectGuest(t, plan.Interfaces[0].MAC)
	address(t, w.guest, "nic0", "fd10:0:2::2/120")
	if got := w.gatewayOf(t); got != "fe80::ff:fe00:0" {
		t.Errorf("the gateway is %s", got)
	}
	expectReach(t, w.guest, "[fd01::1]:8084", w.peer, "[fd01::1]:8084", "fd01::5")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A Pod without IPv6 gets no socket.
func TestNoRouterWithoutIPv6(t *testing.T) {
	w := newWorld(t)
	inside(t, w.pod, func() error {
		link, err := mustFind("eth0")
		if err != nil {
			return err
		}
		address, err := netlink.ParseAddr("fd01::5/64")
		return errors.Join(err, netlink.AddrDel(link, address))
	})
	ensure(t, w, masqueradePlan(t))
	socket, _, err := OpenRouter(w.pod, "k6t-eth0")
	if err != nil || socket != nil {
		t.Errorf("got %v, %v", socket, err)
	}
}
