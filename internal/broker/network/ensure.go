// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package network connects a guest to its Pod's network with a bridge, a tap and NAT in the Pod's network namespace. The broker
// does so because the Pod has no permission to. Everything is level-triggered: Ensure reads what exists and creates what is
// missing, so that it completes what a broker that was killed has started.
package network

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/launcherpod/podiface"
)

type (
	// Plan is the protocol's.
	Plan = brokerapi.Plan
	// Interface is the protocol's.
	Interface = brokerapi.Interface
	// PortRange is the protocol's.
	PortRange = brokerapi.PortRange
)

// podState is the original state of the Pod's interface, before it was displaced.
type podState struct {
	link      netlink.Link
	mtu       int
	addresses []netip.Prefix
}

func (s podState) hasIPv6() bool { return s.has(netip.Addr.Is6) }

func (s podState) hasIPv4() bool { return s.has(netip.Addr.Is4) }

func (s podState) has(family func(netip.Addr) bool) bool {
	return slices.ContainsFunc(s.addresses, func(address netip.Prefix) bool { return family(address.Addr()) })
}

// Ensure creates what a plan needs and the namespace does not have. It changes nothing if nothing is missing. The launcher must have
// recorded the Pod's network before, because the bridge binding removes the Pod's routes: call it once libvirtd's socket exists.
func Ensure(ctx context.Context, namespace *Namespace, plan Plan) (map[string]brokerapi.ConnectedInterface, error) {
	results := map[string]brokerapi.ConnectedInterface{}
	err := namespace.Do(func() error {
		settings, err := openSysctls()
		if err != nil {
			return err
		}
		defer settings.close()
		if err := settings.allowDHCPPorts(); err != nil {
			return err
		}
		for _, planned := range plan.Interfaces {
			if err := ctx.Err(); err != nil {
				return err
			}
			result, err := ensureInterface(planned, settings)
			if err != nil {
				return fmt.Errorf("connect the interface %s: %w", planned.Name, err)
			}
			results[planned.Name] = result
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// Forward redirects the migration's ports to the guest too, after Ensure was called with a plan for a migration target. Open
// connections are not affected, not even the one over which post-copy still transfers memory: only the first packet of a
// connection is translated.
func Forward(ctx context.Context, namespace *Namespace, plan Plan) error {
	return namespace.Do(func() error {
		for _, planned := range plan.Interfaces {
			if err := ctx.Err(); err != nil {
				return err
			}
			if planned.Binding != brokerapi.Masquerade {
				continue
			}
			pod, err := readInterface(planned.PodInterface)
			if err != nil {
				return err
			}
			if err := ensureNAT(planned, pod); err != nil {
				return fmt.Errorf("connect the interface %s: %w", planned.Name, err)
			}
		}
		return nil
	})
}

// missingInterface returns an error about an interface of the Pod that does not exist. It names the component that should have created
// it.
func missingInterface(name string) error {
	message := fmt.Sprintf("the Pod has no interface %s: Multus has not attached this network to it. Install Multus on the node, "+
		"or read the Pod's events, and start the VM again", name)
	if name == layout.PrimaryInterface {
		message = fmt.Sprintf("the Pod has no interface %s: check the cluster's network plugin on this node", name)
	}
	return &brokerapi.Error{Code: brokerapi.CodeMissingInterface, Message: message, Subject: name}
}

// expectPodInterface returns an error unless the Pod's interface exists, under its own name or as a displaced one.
func expectPodInterface(name string) error {
	for _, possible := range []string{name, podiface.Displaced(name)} {
		if link, err := find(possible); link != nil || err != nil {
			return err
		}
	}
	return missingInterface(name)
}

func ensureInterface(planned Interface, settings *sysctls) (brokerapi.ConnectedInterface, error) {
	if err := expectPodInterface(planned.PodInterface); err != nil {
		return brokerapi.ConnectedInterface{}, err
	}
	ensure := ensureMasquerade
	if planned.Binding == brokerapi.Bridge {
		ensure = ensureBridged
	}
	pod, err := ensure(&planned, settings)
	if err != nil {
		return brokerapi.ConnectedInterface{}, err
	}
	return brokerapi.ConnectedInterface{
		Tap: podiface.Tap(planned.PodInterface), MAC: planned.MAC.String(), MTU: uint(pod.mtu),
	}, nil
}

// readInterface returns the state of an interface of the Pod.
func readInterface(name string) (podState, error) {
	link, err := mustFind(name)
	if err != nil {
		return podState{}, err
	}
	list, err := addresses(link)
	return podState{link: link, mtu: link.Attrs().MTU, addresses: list}, err
}

// gateway returns the bridge's address in a private network, the first one.
func gateway(network netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(network.Masked().Addr().Next(), network.Bits())
}

// guest returns the guest's address in a private network, the second one. The launcher assigns it by DHCP.
func guest(network netip.Prefix) netip.Addr { return gateway(network).Addr().Next() }
