// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hostile

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vireo-project/vireo/test/scriptedlibvirtd"
)

const (
	// slowResponse is how long a slow launcher takes for each response: less than the deadline of any call.
	slowResponse = 2 * time.Second
	// toggleInterval is how often the guest agent connects or disconnects.
	toggleInterval = 10 * time.Millisecond
	// codeAgentUnresponsive is libvirt's error code VIR_ERR_AGENT_UNRESPONSIVE.
	codeAgentUnresponsive = 86
	procAgent             = 3
	programQEMU           = 0x20008087
)

// hostile is a libvirtd under a guest's control.
type hostile struct {
	daemon *scriptedlibvirtd.Daemon
	// engaged is closed at the agent's first call about its domain.
	engaged chan struct{}
	seen    atomic.Bool
	calls   atomic.Int64
	// states counts the calls for the state of its domain.
	states atomic.Int64
}

// kind is a way to delay an agent.
type kind struct {
	name string
	// migrates reports whether its VMI is being migrated away.
	migrates bool
	// respond is called for each call about the domain. It returns whether it has handled the call.
	respond func(h *hostile, domain string, p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool
}

var kinds = []kind{
	{name: "never responds", respond: func(_ *hostile, _ string, _ *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		return c.Proc == scriptedlibvirtd.ProcLookup
	}},
	{name: "responds slowly", respond: func(*hostile, string, *scriptedlibvirtd.Peer, scriptedlibvirtd.Call) bool {
		<-time.After(slowResponse)
		return false
	}},
	{name: "sends a response without end", respond: func(_ *hostile, domain string, p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		if c.Proc != scriptedlibvirtd.ProcDescribe {
			return false
		}
		// The largest XML that is parsed, and then a message that was not requested.
		if err := p.Reply(c, new(scriptedlibvirtd.Encoder).Str(describe(domain, "", 4000)).Bytes()); err == nil {
			go p.Endless(c, 1<<20)
		}
		return true
	}},
	{name: "floods events", respond: func(_ *hostile, domain string, p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		if c.Proc == scriptedlibvirtd.ProcLookup {
			go func() {
				for p.Message(scriptedlibvirtd.ProcLifecycle,
					scriptedlibvirtd.LifecycleEvent(domain, scriptedlibvirtd.Resumed)) == nil {
				}
			}()
		}
		return false
	}},
	{name: "closes connections at once", respond: func(_ *hostile, _ string, p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		if c.Proc == scriptedlibvirtd.ProcLookup {
			p.Close()
		}
		return c.Proc == scriptedlibvirtd.ProcLookup
	}},
	{name: "reports false progress", migrates: true, respond: func(h *hostile, _ string, p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		if c.Proc == scriptedlibvirtd.ProcJob {
			// A job of ten years, of which more remains each time.
			const year, total = 365 * 24 * 3600 * 1000, 1 << 62
			_ = p.Reply(c, scriptedlibvirtd.JobStats(total, 1, total-1+uint64(h.calls.Load()), 10*year))
			return true
		}
		return false
	}},
	{name: "toggles the guest agent", respond: func(h *hostile, domain string, p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		connected := []string{"connected", "disconnected"}[h.calls.Load()%2]
		switch {
		case c.Program == programQEMU && c.Proc == procAgent:
			_ = p.Refuse(c, codeAgentUnresponsive, "Guest agent is not responding")
			return true
		case c.Proc == scriptedlibvirtd.ProcDescribe:
			_ = p.Reply(c, new(scriptedlibvirtd.Encoder).Str(describe(domain, connected, 0)).Bytes())
			return true
		case c.Proc == scriptedlibvirtd.ProcLookup:
			go func() {
				for n := 0; p.Message(scriptedlibvirtd.ProcAgentChanged,
					scriptedlibvirtd.AgentEvent(domain, n%2 == 0)) == nil; n++ {
					<-time.After(toggleInterval)
				}
			}()
		}
		return false
	}},
	{name: "reports another state each time", respond: func(h *hostile, _ string, p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		if c.Proc != scriptedlibvirtd.ProcState {
			return false
		}
		_ = p.Reply(c, scriptedlibvirtd.StateReply(h.states.Add(1)%2 == 0))
		return true
	}},
}

// newHostile returns a libvirtd of a kind whose domain runs.
func newHostile(k kind, domain string) *hostile {
	h := &hostile{daemon: scriptedlibvirtd.New(), engaged: make(chan struct{})}
	h.daemon.Run(domain, describe(domain, "disconnected", 0))
	h.daemon.Respond = func(p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		if c.Name() != domain {
			return false
		}
		h.calls.Add(1)
		if !h.seen.Swap(true) {
			close(h.engaged)
		}
		return k.respond(h, domain, p, c)
	}
	return h
}

// describe returns the XML of a domain with the state of its guest agent's channel and a number of disks.
func describe(name, agent string, disks int) string {
	return fmt.Sprintf("<domain type='kvm'><name>%s</name><os><type machine='q35'>hvm</type></os><devices>%s<channel type='unix'>"+
		"<target type='virtio' name='org.qemu.guest_agent.0' state='%s'/></channel></devices></domain>",
		name, strings.Repeat("<disk/>", disks), agent)
}
