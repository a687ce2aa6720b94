// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcher/podiface"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Result is what was made for one interface of the guest.
type Result struct {
	// Fact is what the domain needs.
	Fact domain.InterfaceFact
	// PodInterface is the Pod's interface, for the VMI's status.
	PodInterface string
	// IPs are the addresses by which others reach the guest: the Pod's.
	IPs []string
}

// seen is what the Pod's interface looked like, or still would look like had it not been displaced.
type seen struct {
	link      netlink.Link
	mtu       int
	addresses []netip.Prefix
}

func (s seen) hasIPv6() bool { return s.has(netip.Addr.Is6) }

func (s seen) hasIPv4() bool { return s.has(netip.Addr.Is4) }

func (s seen) has(family func(netip.Addr) bool) bool {
	for _, address := range s.addresses {
		if family(address.Addr()) {
			return true
		}
	}
	return false
}

// Ensure makes what a plan asks for and is missing in the namespace. When everything is there, it changes
// nothing. The Pod's launcher must have taken down the network before, because the bridge binding ends the
// Pod's routes: call it once libvirtd's socket exists.
func Ensure(ctx context.Context, namespace *Namespace, plan Plan) (map[string]Result, error) {
	results := map[string]Result{}
	err := namespace.Do(func() error {
		settings, err := openSysctls()
		if err != nil {
			return err
		}
		defer settings.close()
		if err := settings.letLauncherBind(); err != nil {
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

// Forward turns connections to the guest as a plan says, where the network was made for a guest on its way here. Connections that are
// open stay as they are, also the one by which the guest still fetches memory: only the first packet of one is translated.
func Forward(ctx context.Context, namespace *Namespace, plan Plan) error {
	return namespace.Do(func() error {
		for _, planned := range plan.Interfaces {
			if err := ctx.Err(); err != nil {
				return err
			}
			if planned.Binding != Masquerade {
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

// MissingInterfaceError says that the Pod has no interface on a network. The guest's would lead nowhere.
type MissingInterfaceError struct {
	// PodInterface is the interface's name.
	PodInterface string
}

// Error says what is missing and who should have made it.
func (e *MissingInterfaceError) Error() string {
	if e.PodInterface == launcherpod.PrimaryInterface {
		return fmt.Sprintf("the Pod has no interface %s: look at the cluster's network plugin on this node", e.PodInterface)
	}
	return fmt.Sprintf("the Pod has no interface %s: Multus has not attached this network to it. Install Multus on the node, "+
		"or look at the Pod's events, and start the VM again", e.PodInterface)
}

// expectPodInterface looks for the Pod's interface under all the names that it has in turn.
func expectPodInterface(name string) error {
	for _, possible := range []string{name, podiface.Displaced(name)} {
		if link, err := find(possible); link != nil || err != nil {
			return err
		}
	}
	return &MissingInterfaceError{PodInterface: name}
}

func ensureInterface(planned Interface, settings *sysctls) (Result, error) {
	if err := expectPodInterface(planned.PodInterface); err != nil {
		return Result{}, err
	}
	ensure := ensureMasquerade
	if planned.Binding == Bridge {
		ensure = ensureBridged
	}
	pod, err := ensure(&planned, settings)
	if err != nil {
		return Result{}, err
	}
	result := Result{
		PodInterface: planned.PodInterface,
		Fact: domain.InterfaceFact{
			Tap: podiface.Tap(planned.PodInterface), MAC: planned.MAC.String(), MTU: uint(pod.mtu),
		},
	}
	for _, address := range pod.addresses {
		result.IPs = append(result.IPs, address.Addr().String())
	}
	return result, nil
}

// readInterface reads the state of an interface of the Pod.
func readInterface(name string) (seen, error) {
	link, err := mustFind(name)
	if err != nil {
		return seen{}, err
	}
	list, err := addresses(link)
	return seen{link: link, mtu: link.Attrs().MTU, addresses: list}, err
}
