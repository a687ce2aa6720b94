// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

const (
	// agentTimeout is how long libvirtd waits for the guest agent.
	agentTimeout = 5
	// jobWait is how long libvirtd lets a call wait for others to the same agent, such as a probe's.
	// Source: libvirt src/conf/virdomainjob.c (VIR_JOB_WAIT_TIME).
	jobWait = 30
	// guestTimeout bounds the calls that ask the guest agent over the connection that all else goes over. Each waits for its
	// turn, and for the agent twice: whether it is there at all, and for the answer. With less, a slow guest could have the
	// connection cut whenever it wants.
	guestTimeout = 3 * (jobWait + 2*agentTimeout) * time.Second
	// askTimeout bounds all questions of one conversation with the guest agent, which has a connection of its own.
	askTimeout = time.Minute

	// Caps on what a guest can put into the VMI's status and into answers.
	maxGuestInterfaces  = 64
	maxGuestAddresses   = 32
	maxGuestUsers       = 1000
	maxGuestFilesystems = 1000
	maxGuestDisks       = 32
	maxGuestCommands    = 512
	maxAgentAnswer      = 64 << 10
	// MaxGuestInfo is what a GuestInfo takes at most that is kept: names of 256 characters of four bytes, and addresses.
	MaxGuestInfo = 10*1<<10 + maxGuestInterfaces*(2<<10+128+maxGuestAddresses*64)
)

// guest is a conversation with the guest agent.
type guest struct {
	client *libvirtrpc.Client
	domain libvirtrpc.Domain
}

// ask gives the agent a command and returns the answer.
func (g guest) ask(ctx context.Context, command string, wait time.Duration) ([]byte, error) {
	answer, err := g.client.AgentAnswer(ctx, g.domain, `{"execute":"`+command+`"}`, wait)
	if err == nil {
		return answer, nil
	}
	err = fromClient(command, err)
	var refused *libvirtrpc.Error
	if errors.As(err, &refused) && !errors.Is(err, hypervisor.ErrGuestSilent) && !errors.Is(err, hypervisor.ErrNotRunning) {
		// libvirtd found nothing wrong itself: it passes on what the agent said.
		err = fmt.Errorf("%w: %w", hypervisor.ErrGuestRefused, err)
	}
	return nil, err
}

// get asks for an answer that is no list.
func (g guest) get(ctx context.Context, command string, into any) error {
	answer, err := g.ask(ctx, command, agentTimeout*time.Second)
	if err != nil {
		return err
	}
	return parseAnswer(answer, into)
}

// converse asks the guest agent over a connection of its own: answers are as long as the guest wants, and the agent's other
// business must not wait for them.
func (c *Conn) converse(ctx context.Context, domain string, limit time.Duration, do func(context.Context, guest) error) error {
	return c.within(ctx, limit, domain, "ask the guest agent", func(ctx context.Context, client *libvirtrpc.Client, d libvirtrpc.Domain) error {
		return do(ctx, guest{client, d})
	})
}

// GuestInfo asks the guest agent about the operating system and its interfaces.
func (c *Conn) GuestInfo(ctx context.Context, domain string) (*hypervisor.GuestInfo, error) {
	var info *hypervisor.GuestInfo
	err := c.converse(ctx, domain, askTimeout, func(ctx context.Context, g guest) (err error) {
		info, err = g.info(ctx)
		return err
	})
	return info, err
}

func (g guest) info(ctx context.Context) (*hypervisor.GuestInfo, error) {
	info := &hypervisor.GuestInfo{}
	answer, err := g.ask(ctx, "guest-get-osinfo", agentTimeout*time.Second)
	if err != nil {
		return nil, err
	}
	if info.OS, err = parseOSInfo(answer); err != nil {
		return nil, err
	}
	if answer, err = g.ask(ctx, "guest-network-get-interfaces", agentTimeout*time.Second); err != nil {
		return nil, err
	}
	interfaces, err := parseInterfaces(answer)
	if err != nil {
		return nil, err
	}
	info.Interfaces, info.Omitted = interfaces.Items, interfaces.Omitted
	// An old agent does not know its host's name; the rest is still worth having.
	var host struct {
		Name string `json:"host-name"`
	}
	if err := g.get(ctx, "guest-get-host-name", &host); err == nil {
		info.Hostname = hypervisor.Clean(host.Name)
	}
	return info, nil
}

// withAgent calls a function that asks the guest agent through libvirt.
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
func parseOSInfo(answer []byte) (hypervisor.GuestOS, error) {
	var r struct {
		ID            string `json:"id"`
		Name          string `json:"name"`
		PrettyName    string `json:"pretty-name"`
		Version       string `json:"version"`
		VersionID     string `json:"version-id"`
		KernelRelease string `json:"kernel-release"`
		KernelVersion string `json:"kernel-version"`
		Machine       string `json:"machine"`
	}
	if err := parseAnswer(answer, &r); err != nil {
		return hypervisor.GuestOS{}, err
	}
	return hypervisor.GuestOS{
		ID: hypervisor.Clean(r.ID), Name: hypervisor.Clean(r.Name), PrettyName: hypervisor.Clean(r.PrettyName), Version: hypervisor.Clean(r.Version),
		VersionID: hypervisor.Clean(r.VersionID), KernelRelease: hypervisor.Clean(r.KernelRelease), KernelVersion: hypervisor.Clean(r.KernelVersion),
		Machine: hypervisor.Clean(r.Machine),
	}, nil
}

// parseInterfaces reads the answer to guest-network-get-interfaces. Source: as above, GuestNetworkInterface.
func parseInterfaces(answer []byte) (hypervisor.List[hypervisor.GuestInterface], error) {
	var out hypervisor.List[hypervisor.GuestInterface]
	// One more than is wanted: loopback is left out.
	list, err := parseList[struct {
		Name      string          `json:"name"`
		MAC       string          `json:"hardware-address"`
		Addresses json.RawMessage `json:"ip-addresses"`
	}](answer, maxGuestInterfaces+1)
	if err != nil {
		return out, err
	}
	out.Omitted = list.Omitted
	for _, i := range list.Items {
		guest := hypervisor.GuestInterface{Name: hypervisor.Clean(i.Name), MAC: strings.ToLower(hypervisor.Clean(i.MAC))}
		if guest.Name == "lo" {
			continue
		}
		if len(out.Items) == maxGuestInterfaces {
			out.Omitted++
			continue
		}
		// Loopback and link-local addresses with a zone are left out too.
		addresses, err := parseInner[struct {
			Address string `json:"ip-address"`
		}](i.Addresses, 2*maxGuestAddresses)
		if err != nil {
			return hypervisor.List[hypervisor.GuestInterface]{}, err
		}
		for _, a := range addresses {
			// Only what is an address: this goes into status.interfaces, which others connect to.
			ip, err := netip.ParseAddr(a.Address)
			if err != nil || ip.IsLoopback() || ip.Zone() != "" || len(guest.IPs) == maxGuestAddresses {
				continue
			}
			guest.IPs = append(guest.IPs, ip.String())
		}
		out.Items = append(out.Items, guest)
	}
	return out, nil
}
