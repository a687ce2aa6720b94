// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"net"
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
	plans "github.com/vireo-project/vireo/internal/agent/network"
)

// envoy returns a dialer with the source address of Envoy's inbound connections, which Istio's own rules do not
// redirect.
func envoy() net.Dialer { return net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 6)}} }

// Istio's rules redirect incoming connections to Envoy. Our rules redirect Envoy's connections to the guest.
func TestMasqueradeWithSidecar(t *testing.T) {
	w := newWorld(t)
	plan := plans.WithSidecar(masqueradePlan(t))
	results := ensure(t, w, plan)
	w.connectGuest(t, plan.Interfaces[0].MAC)
	address(t, w.guest, "nic0", "10.0.2.2/24")
	defaultRoute(t, w.guest, "10.0.2.1")
	address(t, w.guest, "nic0", "fd10:0:2::2/120")
	defaultRoute(t, w.guest, "fd10:0:2::1")
	expectStable(t, w, plan, results)

	t.Run("from outside to the sidecar", func(t *testing.T) {
		expectReach(t, w.peer, "10.1.0.5:8080", w.pod, "10.1.0.5:8080", "10.1.0.1")
		expectReach(t, w.peer, "10.1.0.5:15021", w.pod, "10.1.0.5:15021", "10.1.0.1")
		expectReach(t, w.peer, "[fd01::5]:8080", w.pod, "[fd01::5]:8080", "fd01::1")
	})
	t.Run("from the sidecar to the guest", func(t *testing.T) {
		route{by: envoy(), from: w.pod, to: w.guest}.expect(t, "10.1.0.5:8080", "10.0.2.2:8080", "10.0.2.1")
		route{by: envoy(), from: w.pod, to: w.guest}.expect(t, "10.1.0.5:15021", "10.0.2.2:15021", "10.0.2.1")
		expectReach(t, w.pod, "127.0.0.1:8081", w.guest, "10.0.2.2:8081", "10.0.2.1")
	})
	t.Run("inside the sidecar", func(t *testing.T) {
		expectReach(t, w.pod, "127.0.0.1:15000", w.pod, "127.0.0.1:15000", "127.0.0.1")
		expectReach(t, w.pod, "127.0.0.1:15090", w.pod, "127.0.0.1:15090", "127.0.0.1")
	})
	t.Run("past the sidecar", func(t *testing.T) {
		expectReach(t, w.peer, "10.1.0.5:22", w.guest, "10.0.2.2:22", "10.1.0.1")
		expectReach(t, w.peer, "[fd01::5]:22", w.guest, "[fd10:0:2::2]:22", "fd01::1")
		expectReach(t, w.peer, "10.1.0.5:49152", w.guest, "10.0.2.2:49152", "10.1.0.1")
	})
	t.Run("out of the guest", func(t *testing.T) {
		expectReach(t, w.guest, "10.1.0.1:8082", w.peer, "10.1.0.1:8082", "10.1.0.5")
	})
}

func TestMasqueradeWithSidecarForwardsListedPortsOnly(t *testing.T) {
	w := newWorld(t)
	plan := plans.WithSidecar(masqueradePlan(t, v1.Port{Port: 8080}))
	results := ensure(t, w, plan)
	w.connectGuest(t, plan.Interfaces[0].MAC)
	address(t, w.guest, "nic0", "10.0.2.2/24")
	defaultRoute(t, w.guest, "10.0.2.1")
	// No connections bypass the sidecar here, so that some chains have no rules. A second Ensure must recognize the
	// ruleset.
	expectStable(t, w, plan, results)
	expectReach(t, w.peer, "10.1.0.5:22", w.pod, "10.1.0.5:22", "10.1.0.1")
	route{by: envoy(), from: w.pod, to: w.guest}.expect(t, "10.1.0.5:8080", "10.0.2.2:8080", "10.0.2.1")
	route{by: envoy(), from: w.pod, to: w.pod}.expect(t, "10.1.0.5:8081", "10.1.0.5:8081", "127.0.0.6")
}

func TestMigrationBypassesTheSidecar(t *testing.T) {
	w := newWorld(t)
	plan := plans.WithSidecar(masqueradePlan(t))
	ensure(t, w, plans.ForMigrationTarget(plan))
	w.connectGuest(t, plan.Interfaces[0].MAC)
	address(t, w.guest, "nic0", "10.0.2.2/24")
	defaultRoute(t, w.guest, "10.0.2.1")
	expectReach(t, w.peer, "10.1.0.5:49152", w.pod, "10.1.0.5:49152", "10.1.0.1")
	expectReach(t, w.peer, "10.1.0.5:22", w.guest, "10.0.2.2:22", "10.1.0.1")
}
