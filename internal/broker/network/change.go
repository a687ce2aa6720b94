// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package network changes a Pod's network namespace, in which the Pod itself has no permission to change anything.
// virt-handler reads what exists and decides what is missing; this package has the changes that connect a guest with a
// bridge, a tap and NAT, and no others. Each of them affects the Pod's namespace only, whatever names and numbers it
// has.
package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
)

// maxSteps is the limit for the steps of a change. An interface of a guest takes about 20.
const maxSteps = 2048

// linkName matches names of links. They are also names of directories with the kernel's settings, of which all and
// default are none of a link.
var linkName = regexp.MustCompile(`^[a-z0-9-]{2,15}$`)

// CheckLinkName returns an error unless a name can be that of a link that a guest needs.
func CheckLinkName(name string) error {
	if !linkName.MatchString(name) || name == "lo" || name == "all" || name == "default" {
		return brokerapi.Invalid("%.32q is no name of a link", name)
	}
	return nil
}

// Check returns an error unless steps are complete.
func Check(steps []networkapi.Step) error {
	if len(steps) > maxSteps {
		return brokerapi.Invalid("%d steps are more than %d", len(steps), maxSteps)
	}
	for i := range steps {
		if err := check(&steps[i]); err != nil {
			return err
		}
	}
	return nil
}

func check(s *networkapi.Step) error {
	if s.Do == networkapi.Translate {
		return checkRules(s)
	}
	if s.Do == networkapi.Set {
		if set, known := settings[s.Setting]; !known || set.ofLink == (s.Link == "") {
			return brokerapi.Invalid("%.32q of %.32q is no setting", s.Setting, s.Link)
		} else if !set.ofLink {
			return nil
		}
	}
	if err := CheckLinkName(s.Link); err != nil {
		return err
	}
	valid := true
	switch s.Do {
	case networkapi.AddBridge, networkapi.SetMAC:
		valid = len(s.MAC) == 6 && s.MAC[0]&1 == 0
	case networkapi.AddAddress, networkapi.RemoveAddress:
		valid = s.Address.IsValid() && s.Address.Addr().Zone() == ""
	case networkapi.Rename, networkapi.Attach:
		return CheckLinkName(s.Other)
	case networkapi.AddTap, networkapi.SetUp, networkapi.StopLearning, networkapi.Set:
	default:
		return brokerapi.Invalid("%.32q is no change of a network", s.Do)
	}
	if !valid {
		return brokerapi.Invalid("%s of %s has no valid address", s.Do, s.Link)
	}
	return nil
}

// Change makes checked steps in a namespace, until one fails.
func Change(ctx context.Context, namespace *Namespace, steps []networkapi.Step) error {
	return namespace.Do(func() error {
		procfs, err := podprocess.MountKernelFS("proc")
		if err != nil {
			return err
		}
		defer func() { _ = procfs.Close() }()
		room, err := roomForLinks()
		if err != nil {
			return err
		}
		for i := range steps {
			s := &steps[i]
			if err := ctx.Err(); err != nil {
				return err
			}
			if s.Do == networkapi.AddBridge || s.Do == networkapi.AddTap {
				if room--; room < 0 {
					return brokerapi.Invalid("the Pod would have more than %d links", maxLinks)
				}
			}
			if err := makeStep(s, procfs); err != nil {
				return fmt.Errorf("%s %s %s: %w", s.Do, s.Link, s.Other, err)
			}
		}
		return nil
	})
}

func makeStep(s *networkapi.Step, procfs *os.File) error {
	switch s.Do {
	case networkapi.Translate:
		return translate(s)
	case networkapi.Set:
		return apply(procfs, s.Setting, s.Link)
	case networkapi.AddBridge:
		return addBridge(s)
	case networkapi.AddTap:
		return addTap(s.Link, s.MultiQueue)
	default:
		link, err := netlink.LinkByName(s.Link)
		if err != nil {
			return err
		}
		return changeLink(s, link)
	}
}

func changeLink(s *networkapi.Step, link netlink.Link) error {
	switch s.Do {
	case networkapi.AddAddress:
		if err := netlink.AddrAdd(link, addressOf(s)); !errors.Is(err, unix.EEXIST) {
			return err
		}
		return nil
	case networkapi.RemoveAddress:
		// The kernel has removed IPv6 addresses of a link that was set down.
		if err := netlink.AddrDel(link, addressOf(s)); !errors.Is(err, unix.EADDRNOTAVAIL) {
			return err
		}
		return nil
	case networkapi.SetMAC:
		return netlink.LinkSetHardwareAddr(link, s.MAC)
	case networkapi.SetUp:
		return netlink.LinkSetUp(link)
	case networkapi.Rename:
		if err := netlink.LinkSetDown(link); err != nil {
			return err
		}
		return netlink.LinkSetName(link, s.Other)
	case networkapi.StopLearning:
		return netlink.LinkSetLearning(link, false)
	default: // Attach
		bridge, err := netlink.LinkByName(s.Other)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMTU(link, s.MTU); err != nil {
			return err
		}
		return netlink.LinkSetMaster(link, bridge)
	}
}

// addressOf returns the address of a step. IPv6 addresses skip duplicate detection, as no one else is on these
// networks.
func addressOf(s *networkapi.Step) *netlink.Addr {
	ip := s.Address.Addr()
	address := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(s.Address.Bits(), ip.BitLen())}}
	if s.NoRoute {
		address.Flags |= unix.IFA_F_NOPREFIXROUTE
	}
	if ip.Is6() {
		address.Flags |= unix.IFA_F_NODAD
	}
	return address
}

// addBridge creates a bridge unless the link exists. Its hardware address is fixed: otherwise a bridge takes it from
// its ports, and changes it with them.
func addBridge(s *networkapi.Step) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = s.Link, s.MAC, s.MTU
	snooping := false // It is of no use for a bridge of two ports, and can break the guest's IPv6.
	err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping})
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// addTap creates a persistent tap unless the link exists. The library sets persistence last, so that no incomplete tap
// is left if the broker is interrupted.
func addTap(name string, multiQueue bool) error {
	if _, err := netlink.LinkByName(name); !errors.As(err, &netlink.LinkNotFoundError{}) {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	tap := &netlink.Tuntap{
		LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR,
		Owner: layout.QEMUUser, Group: layout.QEMUUser,
	}
	if multiQueue {
		// QEMU must open a tap with the flags with which it was created.
		tap.Flags |= netlink.TUNTAP_MULTI_QUEUE
	}
	if err := netlink.LinkAdd(tap); err != nil {
		return fmt.Errorf("virt-network-broker needs the device /dev/net/tun: %w", err)
	}
	return nil
}

// maxLinks is the limit for the links of a namespace. A guest has at most 32 interfaces, and each of them four links.
const maxLinks = 512

// roomForLinks returns how many links may be added to the namespace of the thread.
func roomForLinks() (int, error) {
	found, err := netlink.LinkList()
	return maxLinks - len(found), err
}

// Links describes the links of a namespace.
func Links(namespace *Namespace) (links []networkapi.Link, err error) {
	err = namespace.Do(func() error {
		found, err := netlink.LinkList()
		if err != nil {
			return fmt.Errorf("list the Pod's links: %w", err)
		}
		if len(found) > maxLinks {
			return fmt.Errorf("the Pod has %d links, more than %d", len(found), maxLinks)
		}
		for _, link := range found {
			a := link.Attrs()
			has, err := addresses(link)
			if err != nil {
				return err
			}
			links = append(links, networkapi.Link{Name: a.Name, MAC: a.HardwareAddr, MTU: a.MTU, Addresses: has})
		}
		return nil
	})
	return links, err
}

// addresses returns a link's addresses of global scope.
func addresses(link netlink.Link) ([]netip.Prefix, error) {
	list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", link.Attrs().Name, err)
	}
	var out []netip.Prefix
	for _, one := range list {
		if prefix, err := netip.ParsePrefix(one.IPNet.String()); err == nil && one.Scope == unix.RT_SCOPE_UNIVERSE {
			out = append(out, prefix)
		}
	}
	return out, nil
}
