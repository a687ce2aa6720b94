// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package scriptedlibvirtd

import "encoding/binary"

// codeNoDomain and codeNoSupport are libvirt's (virErrorNumber).
const codeNoSupport, codeNoDomain = 3, 42

// Lifecycle events of a domain (virDomainEventType).
const (
	Started   = 2
	Suspended = 3
	Resumed   = 4
	Stopped   = 5
)

// Ended reports whether a state is that of a domain that ran and is shut off.
func Ended(state, reason int32) bool { return state == shutoff && reason != 0 }

// respondAboutDomain responds to calls about the domain. The caller holds mu.
func (d *Daemon) respondAboutDomain(p *Peer, c Call) error {
	if name := firstString(c.Args); d.name == "" || c.Proc != ProcFinish && name != d.name {
		return p.Refuse(c, codeNoDomain, "no domain with matching name")
	}
	var e Encoder
	switch c.Proc {
	case ProcLookup:
		return p.Reply(c, e.Domain(d.name).Bytes())
	case ProcDescribe:
		return p.Reply(c, e.Str(d.xml).Bytes())
	case ProcState:
		return p.Reply(c, e.I32(d.state).I32(d.reason).Bytes())
	case ProcJob:
		return p.Reply(c, e.I32(0).I32(0).Bytes()) // none, about which there is nothing to say
	case ProcCreate:
		return d.enter(p, c, running, 1, Started, e.Domain(d.name).Bytes())
	case ProcSuspend:
		return d.enter(p, c, paused, pausedByUser, Suspended, nil)
	case ProcResume:
		return d.enter(p, c, running, 1, Resumed, nil)
	case ProcShutdown:
		return d.enter(p, c, shutoff, shutoffByGuest, Stopped, nil)
	case ProcDestroy:
		return d.enter(p, c, shutoff, shutoffKilled, Stopped, nil)
	case ProcBegin:
		return p.Reply(c, e.Str("").Str(d.xml).Bytes())
	case ProcPerform:
		return p.Reply(c, e.Str("").Bytes())
	case ProcFinish:
		d.state, d.reason = paused, pausedByUser
		return p.Reply(c, e.Domain(d.name).Str("").Bytes())
	case ProcConfirm:
		return d.enter(p, c, shutoff, movedAway, Stopped, nil)
	default:
		return p.Refuse(c, codeNoSupport, "this function is not supported by the connection driver")
	}
}

// enter changes the domain's state, responds, and sends the event to the clients that subscribed to it. The caller
// holds mu.
func (d *Daemon) enter(p *Peer, c Call, state, reason, event int32, response []byte) error {
	d.state, d.reason = state, reason
	if d.Changed != nil {
		d.Changed(state, reason)
	}
	if err := p.Reply(c, response); err != nil {
		return err
	}
	for peer, events := range d.peers {
		if events[eventLifecycle] {
			// A client that has disconnected gets no event.
			_ = peer.Message(ProcLifecycle, LifecycleEvent(d.name, event))
		}
	}
	return nil
}

// LifecycleEvent is the body of a message that reports an event of a domain.
func LifecycleEvent(name string, event int32) []byte {
	return new(Encoder).I32(eventLifecycle).Domain(name).I32(event).I32(0).Bytes()
}

// AgentEvent is the body of a message that reports that a guest agent has connected or disconnected.
func AgentEvent(name string, connected bool) []byte {
	state := int32(2)
	if connected {
		state = 1
	}
	return new(Encoder).I32(eventAgentChanged).Domain(name).I32(state).I32(2).Bytes()
}

// StateReply is the response to a query of a domain's state: it was paused by its user, or it runs.
func StateReply(isPaused bool) []byte {
	if isPaused {
		return new(Encoder).I32(paused).I32(pausedByUser).Bytes()
	}
	return new(Encoder).I32(running).I32(1).Bytes()
}

// JobStats is the response to a query of the progress of a migration, with any numbers.
func JobStats(total, processed, remaining, elapsed uint64) []byte {
	const unboundedJob, paramULong = 2, 4
	var e Encoder
	fields := map[string]uint64{
		"memory_total": total, "memory_processed": processed, "memory_remaining": remaining, "time_elapsed": elapsed,
	}
	e.I32(unboundedJob).I32(int32(len(fields)))
	for name, value := range fields {
		e.Str(name).I32(paramULong).U64(value)
	}
	return e.Bytes()
}

// Name is the name of the domain that a call is about, if it is about one.
func (c Call) Name() string { return firstString(c.Args) }

// Endless writes a response that announces size bytes and has as many as the client reads. It returns when the client
// disconnects.
func (p *Peer) Endless(c Call, size uint32) {
	p.write.Lock()
	defer p.write.Unlock()
	m := make([]byte, headerSize, 64<<10)
	for i, word := range []uint32{size, c.Program, 1, uint32(c.Proc), typeReply, c.serial, statusOK} {
		binary.BigEndian.PutUint32(m[4*i:], word)
	}
	for m = m[:cap(m)]; ; clear(m) {
		if _, err := p.conn.Write(m); err != nil {
			return
		}
	}
}
