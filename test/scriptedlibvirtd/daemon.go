// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package scriptedlibvirtd

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Procedures to which a test may want to respond itself.
const (
	ProcOpen          = 1
	ProcDefine        = 11
	ProcDescribe      = 14
	ProcLookup        = 23
	ProcResume        = 28
	ProcSuspend       = 34
	ProcFeature       = 60
	ProcAuthList      = 66
	ProcCreate        = 196
	ProcState         = 212
	ProcDestroy       = 234
	ProcShutdown      = 258
	ProcSetMetadata   = 264
	ProcJob           = 298
	ProcBegin         = 302
	ProcPrepare       = 303
	ProcPerform       = 305
	ProcFinish        = 306
	ProcConfirm       = 307
	ProcRegister      = 316
	ProcMaxDowntime   = 166
	ProcLifecycle     = 318
	ProcStats         = 344
	ProcAgentChanged  = 348
	eventLifecycle    = 0
	eventAgentChanged = 18
)

// States of a domain and reasons for them (virDomainState and the enumerations of its reasons).
const (
	running, paused, shutoff                 = 1, 3, 5
	pausedByUser                             = 1
	shutoffByGuest, shutoffKilled, movedAway = 1, 2, 4
)

// Daemon is one libvirtd with at most one domain.
type Daemon struct {
	// Respond is called first, for each call, and returns whether it has responded. It may block, which blocks the
	// connection, and is called for each connection on its own goroutine.
	Respond func(p *Peer, c Call) bool
	// Changed is called with each new state of the domain, in libvirt's numbers. It must not block.
	Changed func(state, reason int32)

	mu        sync.Mutex
	listener  net.Listener
	peers     map[*Peer]map[int32]bool
	name, xml string
	state     int32
	reason    int32
}

// New makes a daemon without a domain.
func New() *Daemon { return &Daemon{peers: map[*Peer]map[int32]bool{}} }

// Listen serves a socket until Close.
func (d *Daemon) Listen(path string) error {
	// Bound under a short name and moved: a socket's address has at most 108 bytes, its file has no such limit.
	short, err := os.MkdirTemp("", "s")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(short) }()
	listener, err := net.Listen("unix", filepath.Join(short, "s"))
	if err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(short, "s"), path); err != nil {
		_ = listener.Close()
		return err
	}
	d.mu.Lock()
	d.listener = listener
	d.mu.Unlock()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go d.Serve(conn)
		}
	}()
	return nil
}

// Close stops listening and closes all connections.
func (d *Daemon) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener != nil {
		_ = d.listener.Close()
	}
	for p := range d.peers {
		p.Close()
	}
}

// Serve serves one connection until it ends.
func (d *Daemon) Serve(conn net.Conn) {
	p := &Peer{conn: conn}
	d.mu.Lock()
	d.peers[p] = map[int32]bool{}
	d.mu.Unlock()
	defer func() {
		p.Close()
		d.mu.Lock()
		delete(d.peers, p)
		d.mu.Unlock()
	}()
	for {
		c, err := p.read()
		if err != nil {
			return
		}
		if c.Program == programKeepAlive {
			err = p.send(programKeepAlive, keepAlivePong, typeMessage, 0, statusOK, nil)
		} else if d.Respond == nil || !d.Respond(p, c) {
			err = d.respond(p, c)
		}
		if err != nil {
			return
		}
	}
}

// Run makes a domain that runs, as if a client had started it.
func (d *Daemon) Run(name, xml string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.name, d.xml, d.state, d.reason = name, xml, running, 1
}

// respond sends the response that libvirtd would send.
func (d *Daemon) respond(p *Peer, c Call) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var e Encoder
	switch c.Proc {
	case ProcAuthList:
		return p.Reply(c, e.I32(1).I32(0).Bytes()) // one way, which is none
	case ProcFeature:
		return p.Reply(c, e.I32(1).Bytes())
	case ProcOpen, ProcMaxDowntime:
		return p.Reply(c, nil)
	case ProcRegister:
		d.peers[p][firstI32(c.Args)] = true
		return p.Reply(c, e.I32(firstI32(c.Args)).Bytes())
	case ProcPrepare:
		d.name, d.state, d.reason = d.incoming(c), paused, 0
		return p.Reply(c, e.Str("").I32(0).Bytes())
	case ProcDefine:
		return d.define(p, c)
	case ProcStats:
		// One domain with one statistic, an unsigned long.
		return p.Reply(c, e.I32(1).Domain(d.name).I32(1).Str("cpu.time").I32(4).U64(1e9).Bytes())
	}
	return d.respondAboutDomain(p, c)
}

// define keeps a domain's XML.
func (d *Daemon) define(p *Peer, c Call) error {
	d.xml = firstString(c.Args)
	d.name = between(d.xml, "<name>", "</name>")
	if d.state == 0 {
		d.state = shutoff
	}
	return p.Reply(c, new(Encoder).Domain(d.name).Bytes())
}

// incoming returns the name of a domain that migrates to this libvirtd.
func (d *Daemon) incoming(c Call) string {
	if name := between(string(c.Args), "<name>", "</name>"); name != "" {
		return name
	}
	return d.name
}

func between(text, open, end string) string {
	_, rest, _ := strings.Cut(text, open)
	name, _, _ := strings.Cut(rest, end)
	return name
}
