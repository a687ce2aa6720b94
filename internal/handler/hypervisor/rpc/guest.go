// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

const (
	// agentTimeout is how long libvirtd waits for the guest agent.
	agentTimeout = 5
	// jobWait is how long libvirtd lets a call wait for others to the same agent, such as a probe's.
	// Source: libvirt src/conf/virdomainjob.c (VIR_JOB_WAIT_TIME).
	jobWait = 30
	// guestTimeout bounds the calls that ask the guest agent, of which GuestInfo makes three. Each waits for its turn, and
	// for the agent twice: whether it is there at all, and for the answer. With less, a slow guest could have the connection
	// cut whenever it wants.
	guestTimeout = 3 * (jobWait + 2*agentTimeout) * time.Second

	// Caps on what a guest can put into the VMI's status.
	maxGuestInterfaces = 64
	maxGuestAddresses  = 32
	maxAgentAnswer     = 64 << 10
)

// GuestInfo asks the guest agent about the operating system and its interfaces.
//
// libvirt's GetGuestInfo would be one call, but its Go binding allocates as many entries as the answer claims to
// have, which lets a hostile launcher exhaust the agent's memory.
func (c *Conn) GuestInfo(ctx context.Context, name string) (*hypervisor.GuestInfo, error) {
	info := &hypervisor.GuestInfo{}
	err := c.withAgent(ctx, name, "ask the guest agent", func(d *libvirt.Domain) error {
		answer, err := d.QemuAgentCommand(`{"execute":"guest-get-osinfo"}`, agentTimeout, 0)
		if err != nil {
			return err
		}
		if info.OS, err = parseOSInfo(answer); err != nil {
			return err
		}
		interfaces, err := d.ListAllInterfaceAddresses(libvirt.DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT)
		if err != nil {
			return err
		}
		info.Interfaces = guestInterfaces(interfaces)
		// An old agent does not know its host's name; the rest is still worth having.
		if host, err := d.GetHostname(libvirt.DOMAIN_GET_HOSTNAME_AGENT); err == nil {
			info.Hostname = hypervisor.Clean(host)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return info, nil
}

// withAgent calls a function that asks the guest agent.
func (c *Conn) withAgent(ctx context.Context, domain, what string, fn func(*libvirt.Domain) error) error {
	return c.call(ctx, guestTimeout, what, func(l *libvirt.Connect) error {
		return withDomain(l, domain, func(d *libvirt.Domain) error {
			if err := d.AgentSetResponseTimeout(agentTimeout, 0); err != nil {
				return err
			}
			return fn(d)
		})
	})
}

// parseOSInfo reads the answer to guest-get-osinfo. Source: QEMU qga/qapi-schema.json, GuestOSInfo.
func parseOSInfo(answer string) (hypervisor.GuestOS, error) {
	if len(answer) > maxAgentAnswer {
		return hypervisor.GuestOS{}, fmt.Errorf("the guest agent's answer has %d bytes, more than %d", len(answer), maxAgentAnswer)
	}
	var parsed struct {
		Return struct {
			ID            string `json:"id"`
			Name          string `json:"name"`
			PrettyName    string `json:"pretty-name"`
			Version       string `json:"version"`
			VersionID     string `json:"version-id"`
			KernelRelease string `json:"kernel-release"`
			KernelVersion string `json:"kernel-version"`
			Machine       string `json:"machine"`
		} `json:"return"`
	}
	if err := json.Unmarshal([]byte(answer), &parsed); err != nil {
		return hypervisor.GuestOS{}, fmt.Errorf("read the guest agent's answer: %w", err)
	}
	r := parsed.Return
	return hypervisor.GuestOS{
		ID: hypervisor.Clean(r.ID), Name: hypervisor.Clean(r.Name), PrettyName: hypervisor.Clean(r.PrettyName), Version: hypervisor.Clean(r.Version),
		VersionID: hypervisor.Clean(r.VersionID), KernelRelease: hypervisor.Clean(r.KernelRelease), KernelVersion: hypervisor.Clean(r.KernelVersion),
		Machine: hypervisor.Clean(r.Machine),
	}, nil
}

func guestInterfaces(list []libvirt.DomainInterface) []hypervisor.GuestInterface {
	var out []hypervisor.GuestInterface
	for _, i := range list {
		if len(out) == maxGuestInterfaces {
			break
		}
		guest := hypervisor.GuestInterface{Name: hypervisor.Clean(i.Name), MAC: strings.ToLower(hypervisor.Clean(i.Hwaddr))}
		for _, a := range i.Addrs {
			// Only what is an address: this goes into status.interfaces, which others connect to.
			ip, err := netip.ParseAddr(a.Addr)
			if err != nil || ip.IsLoopback() || ip.Zone() != "" || len(guest.IPs) == maxGuestAddresses {
				continue
			}
			guest.IPs = append(guest.IPs, ip.String())
		}
		if guest.Name == "lo" {
			continue
		}
		out = append(out, guest)
	}
	return out
}
