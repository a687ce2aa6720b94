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
	// slowAnswer is how long a slow launcher takes for each answer: less than any call may take.
	slowAnswer = 2 * time.Second
	// toggleInterval is how often a guest's agent comes or goes.
	toggleInterval = 10 * time.Millisecond
	// codeAgentSilent is libvirt's for a guest agent that does not answer (VIR_ERR_AGENT_UNRESPONSIVE).
	codeAgentSilent = 86
	procAgent       = 3
	programQEMU     = 0x20008087
)

// hostile is a libvirtd that was taken over.
type hostile struct {
	daemon *scriptedlibvirtd.Daemon
	// engaged is closed when the agent has asked it for something about its domain.
	engaged chan struct{}
	seen    atomic.Bool
	calls   atomic.Int64
	// states is how often it was asked for the state of its domain.
	states atomic.Int64
}

// kind is a way to hold up an agent.
type kind struct {
	name string
	// migrates reports whether its VMI is being migrated away.
	migrates bool
	// answer is asked for each call about the domain. It says whether it has dealt with it.
	answer func(h *hostile, domain string, p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool
}

var kinds = []kind{
	{name: "never answers", answer: func(_ *hostile, _ string, _ *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		return c.Proc == scriptedlibvirtd.ProcLookup
	}},
	{name: "answers slowly", answer: func(*hostile, string, *scriptedlibvirtd.Peer, scriptedlibvirtd.Call) bool {
		<-time.After(slowAnswer)
		return false
	}},
	{name: "answers without end", answer: func(_ *hostile, domain string, p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		if c.Proc != scriptedlibvirtd.ProcDescribe {
			return false
		}
		// As much to parse as is allowed, and then what nobody asked for.
		if err := p.Reply(c, new(scriptedlibvirtd.Encoder).Str(describe(domain, "", 4000)).Bytes()); err == nil {
			go p.Endless(c, 1<<20)
		}
		return true
	}},
	{name: "floods events", answer: func(_ *hostile, domain string, p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		if c.Proc == scriptedlibvirtd.ProcLookup {
			go func() {
				for p.Message(scriptedlibvirtd.ProcLifecycle, scriptedlibvirtd.LifecycleEvent(domain, scriptedlibvirtd.Resumed)) == nil {
				}
			}()
		}
		return false
	}},
	{name: "closes at once", answer: func(_ *hostile, _ string, p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		if c.Proc == scriptedlibvirtd.ProcLookup {
			p.Close()
		}
		return c.Proc == scriptedlibvirtd.ProcLookup
	}},
	{name: "lies about progress", migrates: true, answer: func(h *hostile, _ string, p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		if c.Proc == scriptedlibvirtd.ProcJob {
			// A job that has gone on for years, and of which more is left each time.
			const year, total = 365 * 24 * 3600 * 1000, 1 << 62
			_ = p.Reply(c, scriptedlibvirtd.JobStats(total, 1, total-1+uint64(h.calls.Load()), 10*year))
			return true
		}
		return false
	}},
	{name: "toggles its agent", answer: func(h *hostile, domain string, p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		connected := []string{"connected", "disconnected"}[h.calls.Load()%2]
		switch {
		case c.Program == programQEMU && c.Proc == procAgent:
			_ = p.Refuse(c, codeAgentSilent, "Guest agent is not responding")
			return true
		case c.Proc == scriptedlibvirtd.ProcDescribe:
			_ = p.Reply(c, new(scriptedlibvirtd.Encoder).Str(describe(domain, connected, 0)).Bytes())
			return true
		case c.Proc == scriptedlibvirtd.ProcLookup:
			go func() {
				for n := 0; p.Message(scriptedlibvirtd.ProcAgentChanged, scriptedlibvirtd.AgentEvent(domain, n%2 == 0)) == nil; n++ {
					<-time.After(toggleInterval)
				}
			}()
		}
		return false
	}},
	{name: "says something else each time", answer: func(h *hostile, _ string, p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		if c.Proc != scriptedlibvirtd.ProcState {
			return false
		}
		_ = p.Reply(c, scriptedlibvirtd.StateReply(h.states.Add(1)%2 == 0))
		return true
	}},
}

// newHostile is a libvirtd of a kind whose domain runs.
func newHostile(k kind, domain string) *hostile {
	h := &hostile{daemon: scriptedlibvirtd.New(), engaged: make(chan struct{})}
	h.daemon.Run(domain, describe(domain, "disconnected", 0))
	h.daemon.Answer = func(p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
		if c.Name() != domain {
			return false
		}
		h.calls.Add(1)
		if !h.seen.Swap(true) {
			close(h.engaged)
		}
		return k.answer(h, domain, p, c)
	}
	return h
}

// describe is a domain with a guest agent's channel in some state and so many disks.
func describe(name, agent string, disks int) string {
	return fmt.Sprintf("<domain type='kvm'><name>%s</name><os><type machine='q35'>hvm</type></os><devices>%s<channel type='unix'>"+
		"<target type='virtio' name='org.qemu.guest_agent.0' state='%s'/></channel></devices></domain>",
		name, strings.Repeat("<disk/>", disks), agent)
}
