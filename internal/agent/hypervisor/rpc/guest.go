// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"libvirt.org/go/libvirt"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/limits"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

const (
	// agentTimeout is how long libvirtd waits for the guest agent.
	agentTimeout = 5
	// jobWait is how long libvirtd lets a call wait for other calls to the same guest agent, such as a probe's.
	// Source: libvirt src/conf/virdomainjob.c (VIR_JOB_WAIT_TIME).
	jobWait = 30
	// guestTimeout bounds calls to the guest agent over the shared connection. Each waits for other calls, and twice for
	// the agent: for its presence and for the response. With less, a slow guest could cause the end of the connection at
	// any time.
	guestTimeout = 3 * (jobWait + 2*agentTimeout) * time.Second
	// guestAgentTimeout bounds all commands that are sent to the guest agent over one direct connection.
	guestAgentTimeout = time.Minute

	// Limits for what a guest can add to the VMI's status and to responses of the API.
	maxGuestInterfaces  = 64
	maxGuestAddresses   = 32
	maxGuestUsers       = 1000
	maxGuestFilesystems = 1000
	maxGuestDisks       = 32
	maxGuestCommands    = 512
	maxAgentResponse    = 64 << 10
	// MaxGuestInfo is the limit for the memory of a GuestInfo in bytes: names of 256 characters of four bytes, and
	// addresses. It is exported for the same test as RelayBytes.
	MaxGuestInfo = 10*1<<10 + maxGuestInterfaces*(2<<10+128+maxGuestAddresses*64)
)

// guest is a direct connection to the guest agent.
type guest struct {
	client *libvirtwire.Client
	domain libvirtwire.Domain
}

// execute sends a command to the agent and returns the response.
func (g guest) execute(ctx context.Context, command string, wait time.Duration) ([]byte, error) {
	return g.executeWith(ctx, command, nil, wait)
}

// executeWith sends a command with arguments, or nil for none.
func (g guest) executeWith(
	ctx context.Context, command string, arguments map[string]any, wait time.Duration,
) ([]byte, error) {
	text, err := json.Marshal(struct {
		Execute   string         `json:"execute"`
		Arguments map[string]any `json:"arguments,omitempty"`
	}{command, arguments})
	if err != nil {
		return nil, fmt.Errorf("write the command %s: %w", command, err)
	}
	response, err := g.client.AgentCommandLong(ctx, g.domain, string(text), wait)
	if err == nil {
		return response, nil
	}
	err = fromClient(command, err)
	var refused *libvirtwire.Error
	if errors.As(err, &refused) && !errors.Is(err, hypervisor.ErrGuestSilent) &&
		!errors.Is(err, hypervisor.ErrNotRunning) {
		// All other errors are those of the agent, which libvirtd forwards.
		err = fmt.Errorf("%w: %w", hypervisor.ErrGuestRefused, err)
	}
	return nil, err
}

// get executes a command whose response is not a list.
func (g guest) get(ctx context.Context, command string, into any) error {
	response, err := g.execute(ctx, command, agentTimeout*time.Second)
	if err != nil {
		return err
	}
	return parseResponse(response, into)
}

// converse runs a function with a direct connection to the guest agent: the guest determines the length of the
// responses, for which other calls must not wait.
func (c *Conn) converse(
	ctx context.Context, domain string, limit time.Duration, do func(context.Context, guest) error,
) error {
	return c.within(ctx, limit, domain, "call the guest agent",
		func(ctx context.Context, client *libvirtwire.Client, d libvirtwire.Domain) error {
			return do(ctx, guest{client, d})
		})
}

// GuestInfo requests the operating system, the interfaces and the use of the guest from the guest agent.
func (c *Conn) GuestInfo(
	ctx context.Context, domain string,
) (info *hypervisor.GuestInfo, usage *hypervisor.GuestUsage, err error) {
	err = c.converse(ctx, domain, guestAgentTimeout, func(ctx context.Context, g guest) (err error) {
		if info, err = g.info(ctx); err == nil {
			usage = g.usage(ctx)
		}
		return err
	})
	return info, usage, err
}

func (g guest) info(ctx context.Context) (*hypervisor.GuestInfo, error) {
	info := &hypervisor.GuestInfo{}
	response, err := g.execute(ctx, "guest-get-osinfo", agentTimeout*time.Second)
	if err != nil {
		return nil, err
	}
	if info.OS, err = parseOSInfo(response); err != nil {
		return nil, err
	}
	if response, err = g.execute(ctx, "guest-network-get-interfaces", agentTimeout*time.Second); err != nil {
		return nil, err
	}
	interfaces, err := parseInterfaces(response)
	if err != nil {
		return nil, err
	}
	info.Interfaces, info.Omitted = interfaces.Items, interfaces.Omitted
	// Old agents do not report the host's name; the rest is useful without it.
	var host struct {
		Name string `json:"host-name"`
	}
	if err := g.get(ctx, "guest-get-host-name", &host); err == nil {
		info.Hostname = hypervisor.Clean(host.Name)
	}
	return info, nil
}

// withAgent calls a function that uses the guest agent through libvirt.
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

// parseOSInfo decodes the response to guest-get-osinfo. Source: QEMU qga/qapi-schema.json, GuestOSInfo.
func parseOSInfo(response []byte) (hypervisor.GuestOS, error) {
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
	if err := parseResponse(response, &r); err != nil {
		return hypervisor.GuestOS{}, err
	}
	return hypervisor.GuestOS{
		ID: hypervisor.Clean(r.ID), Name: hypervisor.Clean(r.Name), PrettyName: hypervisor.Clean(r.PrettyName),
		Version:   hypervisor.Clean(r.Version),
		VersionID: hypervisor.Clean(r.VersionID), KernelRelease: hypervisor.Clean(r.KernelRelease),
		KernelVersion: hypervisor.Clean(r.KernelVersion), Machine: hypervisor.Clean(r.Machine),
	}, nil
}

// parseInterfaces decodes the response to guest-network-get-interfaces. Source: as above, GuestNetworkInterface.
func parseInterfaces(response []byte) (hypervisor.List[hypervisor.GuestInterface], error) {
	var out hypervisor.List[hypervisor.GuestInterface]
	// One more than the limit, because loopback is omitted.
	list, err := parseList[struct {
		Name      string          `json:"name"`
		MAC       string          `json:"hardware-address"`
		Addresses json.RawMessage `json:"ip-addresses"`
	}](response, maxGuestInterfaces+1)
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
		// Loopback addresses, and link-local ones with a zone, are omitted too.
		addresses, err := parseInner[struct {
			Address string `json:"ip-address"`
		}](i.Addresses, 2*maxGuestAddresses)
		if err != nil {
			return hypervisor.List[hypervisor.GuestInterface]{}, err
		}
		for _, a := range addresses {
			// Only valid addresses: others connect to the addresses in status.interfaces.
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

const (
	// firstGuestPoll is the first interval after the agent connected: addresses and names appear while the guest boots.
	firstGuestPoll = 5 * time.Second
	// maxGuestPoll is the longest interval, as in KubeVirt's guest information poller.
	maxGuestPoll = 2 * time.Minute
	// guestPolls is how often the agent is polled without a delay after it connected, and guestPollPause the time between
	// two polls beyond that: a guest decides how often its agent connects, and each poll needs a connection.
	guestPolls     = 3
	guestPollPause = 10 * time.Second
)

// guestPoller polls the guest agent, for whose reports libvirt has no events. It runs in its own goroutine, so that an
// agent that does not respond does not block the reconciler.
type guestPoller struct {
	start   sync.Once
	trigger chan struct{}
	info    atomic.Pointer[hypervisor.GuestInfo]
	usage   atomic.Pointer[hypervisor.GuestUsage]
}

// Guest returns the guest agent's last report, or nil. After the first call the Conn polls the agent and calls the
// function given to Watch when the report changes.
func (c *Conn) Guest(domain string) *hypervisor.GuestInfo {
	c.guest.start.Do(func() { go c.pollGuest(domain) })
	return c.guest.info.Load()
}

// guestConnected triggers a poll of the agent and sets the credentials again: after a reboot from another disk it may
// be the agent of another operating system.
func (c *Conn) guestConnected() {
	for _, c := range []chan struct{}{c.guest.trigger, c.credentials.trigger, c.thaw.trigger, c.clock.trigger} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (c *Conn) pollGuest(domain string) {
	c.guest.poll(c.Done(), func() (*hypervisor.GuestInfo, error) {
		info, usage, err := c.GuestInfo(c.relay.ctx, domain)
		if err != nil {
			log.Log.V(4).Info("Guest agent does not respond", "pod", c.pod.UID, "error", err.Error())
		} else {
			// It changes with each report, and is not in the VMI's status.
			c.guest.usage.Store(usage)
		}
		return info, err
	}, c.notify)
}

// poll polls until the connection is closed, and calls notify when the report changes.
func (p *guestPoller) poll(done <-chan struct{}, request func() (*hypervisor.GuestInfo, error), notify func()) {
	pauses, limit := limits.ExponentialBackoff(firstGuestPoll, maxGuestPoll),
		limits.NewTokenBucket(guestPolls, limits.ExponentialBackoff(guestPollPause, guestPollPause))
	for {
		select {
		case <-done:
			return
		case <-time.After(limit.Delay(time.Now())):
		}
		limit.Take(time.Now())
		if info, err := request(); err == nil && !reflect.DeepEqual(p.info.Swap(info), info) {
			notify()
		}
		select {
		case <-done:
			return
		case <-p.trigger:
			pauses = limits.ExponentialBackoff(firstGuestPoll, maxGuestPoll)
		case <-time.After(pauses.Duration):
			pauses.Step()
		}
	}
}
