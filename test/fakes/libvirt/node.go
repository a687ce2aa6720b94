// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package libvirt implements hypervisors in memory: one launcher per Pod UID, each with its domain, its storage pools
// and knobs for failures. A launcher outlives the agent that uses it, as real launchers do.
package libvirt

import (
	"context"
	"fmt"
	"net"
	"path"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Node has the launchers of a node.
type Node struct {
	mu        sync.Mutex
	launchers map[types.UID]*Launcher
	notify    func(types.NamespacedName)
}

// NewNode returns a node without launchers.
func NewNode() *Node {
	return &Node{launchers: map[types.UID]*Launcher{}, notify: func(types.NamespacedName) {}}
}

// Notify sets the function that is called with a VMI's key when its launcher changes. It must not block.
func (n *Node) Notify(notify func(types.NamespacedName)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notify = notify
}

func (n *Node) changed(vmi types.NamespacedName) {
	n.mu.Lock()
	notify := n.notify
	n.mu.Unlock()
	notify(vmi)
}

// Launcher returns the launcher of a Pod. It creates a reachable one if there is none.
func (n *Node) Launcher(pod types.UID) *Launcher {
	n.mu.Lock()
	defer n.mu.Unlock()
	l, ok := n.launchers[pod]
	if !ok {
		l = &Launcher{node: n, pools: map[string]*pool{}, content: map[string][]byte{}, sums: map[string]uint32{}}
		n.launchers[pod] = l
	}
	return l
}

// Open returns the launcher of a Pod, or the error that was set with Unreachable.
func (n *Node) Open(pod hypervisor.PodRef) (*Launcher, error) {
	l := n.Launcher(pod.UID)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.vmi = pod.VMI
	l.opens++
	if l.unreachable != nil {
		return nil, l.unreachable
	}
	return l, nil
}

// Forget does nothing: a launcher does not end when the agent closes its connection.
func (n *Node) Forget(types.UID) {}

type pool struct {
	dir     string
	volumes []hypervisor.Volume
}

// Launcher is the libvirtd of a Pod.
type Launcher struct {
	node *Node

	mu              sync.Mutex
	vmi             types.NamespacedName
	domain          *hypervisor.Domain
	unreachable     error
	failures        map[string]error
	calls           map[string]int
	slow            map[string]*gate
	pools           map[string]*pool
	rootDirs        map[string]bool
	content         map[string][]byte
	guest           *hypervisor.GuestInfo
	credentials     hypervisor.Credentials
	usage           *hypervisor.GuestUsage
	lost            map[string]bool
	opens           int
	starts          int
	shutdowns       int
	ignoresShutdown bool
	keepsInterfaces bool
	serial          func(net.Conn)
	console         net.Conn
	agent           *hypervisor.GuestAgent
	thawAt          time.Time
	frozen          bool
	screen          []byte
	resets          int
	reboots         int
	sizes           map[string]uint64
	sums            map[string]uint32
	devices         map[string]uint64
	diskErrors      map[string]hypervisor.DiskError
	resumes         int
	moving          moving
	backups         backingUp
	dumps           dumping
	holdsMemory     bool
	// holdsDisks makes the guest release no disk.
	holdsDisks bool

	usb [launcherpod.USBPorts]sync.Mutex
}

// Unreachable makes all calls fail with an error; nil makes the launcher reachable again.
func (l *Launcher) Unreachable(err error) {
	l.change(func() { l.unreachable = err })
}

// change runs a function that changes the launcher, and notifies the agent.
func (l *Launcher) change(do func()) {
	l.mu.Lock()
	do()
	vmi := l.vmi
	l.mu.Unlock()
	if vmi.Name != "" {
		l.node.changed(vmi)
	}
}

// Fail makes one kind of call fail: "domain", "define", "start", "shutdown", "destroy", "pool", "create", "upload",
// "credentials", "console", "graphics", "interface", "pause", "unpause", "vcpus", "memory", "attach x", "detach x" or
// "change x" for a disk x, "reset", "reboot", "screenshot", "agent", "freeze", "thaw", "record" of a snapshot's freeze
// or of a backup, "backup", or one of a migration: "begin", "prepare", "perform", "finish", "confirm", "notice",
// "cancel", "progress", "resume", "postcopy", "downtime", "bandwidth" or "tls".
func (l *Launcher) Fail(call string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failures == nil {
		l.failures = map[string]error{}
	}
	l.failures[call] = err
}

// gate blocks calls.
type gate struct {
	reached, open chan struct{}
	once          sync.Once
}

// Slow makes one kind of call block until release is called. The channel is closed when the first one blocks.
func (l *Launcher) Slow(call string) (reached <-chan struct{}, release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := &gate{reached: make(chan struct{}), open: make(chan struct{})}
	if l.slow == nil {
		l.slow = map[string]*gate{}
	}
	l.slow[call] = g
	return g.reached, sync.OnceFunc(func() { close(g.open) })
}

// LoseResponse makes the next call of a kind, "start", "upload", "backup", "finish" or "confirm", succeed but return
// the error of a connection that breaks before the response.
func (l *Launcher) LoseResponse(call string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == nil {
		l.lost = map[string]bool{}
	}
	l.lost[call] = true
}

// respond returns the result of a call that succeeded. The caller holds mu.
func (l *Launcher) respond(call string) error {
	if !l.lost[call] {
		return nil
	}
	delete(l.lost, call)
	return fmt.Errorf("%s: %w: the connection broke", call, hypervisor.ErrUnreachable)
}

// Notify notifies the agent of a change although nothing has changed.
func (l *Launcher) Notify() { l.change(func() {}) }

// Opens returns how often the agent called Open for the launcher.
func (l *Launcher) Opens() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opens
}

// IgnoreShutdown makes the guest ignore its power button.
func (l *Launcher) IgnoreShutdown() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ignoresShutdown = true
}

// AddFile adds a file to a directory of the Pod, as if from an image or a claim.
func (l *Launcher) AddFile(dir string, v hypervisor.Volume) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.Path = path.Join(dir, v.Name)
	p := l.poolAt(dir)
	p.volumes = append(p.volumes, v)
}

// SetGuest sets the guest agent's report and connects the agent's channel.
func (l *Launcher) SetGuest(info *hypervisor.GuestInfo) {
	l.change(func() {
		l.guest = info
		if l.domain == nil || l.domain.XML.Devices == nil {
			return
		}
		for i := range l.domain.XML.Devices.Channels {
			if target := l.domain.XML.Devices.Channels[i].Target; target != nil && target.VirtIO != nil {
				target.VirtIO.State = "connected"
			}
		}
	})
}

// Alter changes the domain's XML, as a hostile launcher can.
func (l *Launcher) Alter(do func(*libvirtxml.Domain)) {
	l.change(func() { do(l.domain.XML) })
}

// SetState sets the state of the domain.
func (l *Launcher) SetState(state hypervisor.State, reason string) {
	l.change(func() {
		if l.domain != nil {
			l.domain.State, l.domain.Reason = state, reason
		}
	})
}

// Crash ends the domain as if QEMU was killed.
func (l *Launcher) Crash() { l.SetState(hypervisor.StateEnded, "Crashed") }

// Starts returns how often a domain was started.
func (l *Launcher) Starts() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.starts
}

// Shutdowns returns how often the power button was pressed.
func (l *Launcher) Shutdowns() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shutdowns
}

// Snapshot returns a copy of the domain, or nil.
func (l *Launcher) Snapshot() *hypervisor.Domain {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.domain == nil {
		return nil
	}
	// The XML is copied: a test may alter it while the agent reads it.
	text, err := l.domain.XML.Marshal()
	snapshot := hypervisor.Domain{State: l.domain.State, Reason: l.domain.Reason, XML: &libvirtxml.Domain{},
		Plugged: l.domain.Plugged}
	if err != nil || snapshot.XML.Unmarshal(text) != nil {
		return nil
	}
	return &snapshot
}

// Content returns what was uploaded to a volume.
func (l *Launcher) Content(name string) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.content[name]
}

// Calls returns how often one kind of call was made, with the failed ones.
func (l *Launcher) Calls(call string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[call]
}

// enter blocks or fails a call according to Slow, Fail and Unreachable.
func (l *Launcher) enter(ctx context.Context, call string) error {
	l.mu.Lock()
	if l.calls == nil {
		l.calls = map[string]int{}
	}
	l.calls[call]++
	slow, err := l.slow[call], l.failures[call]
	if l.unreachable != nil {
		err = l.unreachable
	}
	l.mu.Unlock()
	if slow != nil {
		slow.once.Do(func() { close(slow.reached) })
		select {
		case <-slow.open:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", call, hypervisor.ErrUnreachable, ctx.Err())
		}
	}
	return err
}

// Domain returns the domain of a name.
func (l *Launcher) Domain(ctx context.Context, name string) (*hypervisor.Domain, error) {
	if err := l.enter(ctx, "domain"); err != nil {
		return nil, err
	}
	found := l.Snapshot()
	if found == nil || found.XML.Name != name {
		return nil, hypervisor.ErrNoDomain
	}
	return found, nil
}

// Define defines the domain unless it runs.
func (l *Launcher) Define(ctx context.Context, definition *libvirtxml.Domain) (*libvirtxml.Domain, error) {
	if err := l.enter(ctx, "define"); err != nil {
		return nil, err
	}
	stored, err := placed(definition)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.domain.Active() {
		l.domain = &hypervisor.Domain{State: hypervisor.StateDefined, XML: stored}
	}
	return placed(l.domain.XML)
}

// placed returns a copy of a domain in which each virtio device has a PCI address.
func placed(definition *libvirtxml.Domain) (*libvirtxml.Domain, error) {
	text, err := definition.Marshal()
	if err != nil {
		return nil, err
	}
	stored := &libvirtxml.Domain{}
	if err := stored.Unmarshal(text); err != nil || stored.Devices == nil {
		return stored, err
	}
	var zero, bus uint
	next := func() *libvirtxml.DomainAddress {
		bus++
		at := bus
		return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{Domain: &zero, Bus: &at, Slot: &zero,
			Function: &zero}}
	}
	for i := range stored.Devices.Disks {
		if disk := &stored.Devices.Disks[i]; disk.Address == nil && disk.Target != nil && disk.Target.Bus == "virtio" {
			disk.Address = next()
		}
	}
	for i := range stored.Devices.Interfaces {
		if nic := &stored.Devices.Interfaces[i]; nic.Address == nil {
			nic.Address = next()
		}
	}
	return stored, nil
}

// Start defines the domain and starts it unless it runs.
func (l *Launcher) Start(ctx context.Context, definition *libvirtxml.Domain, paused bool) error {
	if err := l.enter(ctx, "start"); err != nil {
		return err
	}
	stored, err := placed(definition)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.domain.Active() {
		return nil
	}
	l.domain = &hypervisor.Domain{State: hypervisor.StateRunning, XML: stored}
	if paused {
		l.domain.State, l.domain.Reason = hypervisor.StatePaused, hypervisor.PausedByUser
	}
	l.starts++
	return l.respond("start")
}

// Shutdown presses the power button, which ends the domain unless the guest ignores it.
func (l *Launcher) Shutdown(ctx context.Context, _ string) error {
	if err := l.enter(ctx, "shutdown"); err != nil {
		return err
	}
	l.change(func() {
		l.shutdowns++
		if l.domain.Active() && !l.ignoresShutdown {
			l.domain.State, l.domain.Reason = hypervisor.StateEnded, "Shutdown"
		}
	})
	return nil
}

// Destroy ends the domain.
func (l *Launcher) Destroy(ctx context.Context, _ string) error {
	if err := l.enter(ctx, "destroy"); err != nil {
		return err
	}
	l.SetState(hypervisor.StateEnded, "Destroyed")
	return nil
}

// Guest returns the report that was set with SetGuest.
func (l *Launcher) Guest(string) *hypervisor.GuestInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.guest
}

// Credentials sets the credentials in the guest at once, unless it was made to fail.
func (l *Launcher) Credentials(_ string, read func() (hypervisor.Credentials, error)) *hypervisor.CredentialsState {
	wanted, err := read()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		err = l.failures["credentials"]
	}
	if err != nil {
		return &hypervisor.CredentialsState{Message: err.Error()}
	}
	l.credentials = wanted
	return &hypervisor.CredentialsState{Synchronized: true}
}

// InGuest returns the credentials that were set last.
func (l *Launcher) InGuest() hypervisor.Credentials {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.credentials
}
