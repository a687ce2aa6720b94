// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package fake is a hypervisor in memory: one launcher per Pod UID, each with its domain, its storage pools and
// knobs for what can go wrong. It outlives the agent that uses it, as real launchers do.
package fake

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"path"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Node holds the launchers of a node.
type Node struct {
	mu        sync.Mutex
	launchers map[types.UID]*Launcher
	notify    func(types.NamespacedName)
}

// NewNode makes a node without launchers.
func NewNode() *Node {
	return &Node{launchers: map[types.UID]*Launcher{}, notify: func(types.NamespacedName) {}}
}

// Notify sets what is called with a VMI's key when something changes in its launcher. It must not block.
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

// Launcher returns the launcher of a Pod, made if need be. It is reachable.
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

// Open returns the launcher of a Pod, or the error that it was given.
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

// Forget does nothing: launchers do not end when the agent lets go of them.
func (n *Node) Forget(types.UID) {}

type pool struct {
	dir     string
	volumes []hypervisor.Volume
}

// Launcher is one Pod's libvirtd.
type Launcher struct {
	node *Node

	mu          sync.Mutex
	vmi         types.NamespacedName
	domain      *hypervisor.Domain
	unreachable error
	failures    map[string]error
	slow        map[string]*gate
	pools       map[string]*pool
	rootDirs    map[string]bool
	content     map[string][]byte
	guest       *hypervisor.GuestInfo
	credentials hypervisor.Credentials
	lost        map[string]bool
	opens       int
	starts      int
	shutdowns   int
	stubborn    bool
	serial      func(net.Conn)
	console     net.Conn
	agent       *hypervisor.GuestAgent
	thawAt      time.Time
	screen      []byte
	resets      int
	reboots     int
	sizes       map[string]uint64
	sums        map[string]uint32
	devices     map[string]uint64
	diskErrors  map[string]hypervisor.DiskError
	resumes     int
	moving      moving

	usb [launcherpod.USBPorts]sync.Mutex
}

// Unreachable makes every way to the launcher fail; nil lets it answer again.
func (l *Launcher) Unreachable(err error) {
	l.change(func() { l.unreachable = err })
}

// change changes something and tells the agent.
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
// "credentials", "console", "graphics", "pause", "unpause",
// "reset", "reboot", "screenshot", "agent", "freeze", "thaw", or one of a migration: "begin", "prepare", "perform", "finish",
// "confirm", "notice", "cancel", "progress", "resume", "postcopy", "downtime", "bandwidth" or "tls".
func (l *Launcher) Fail(call string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failures == nil {
		l.failures = map[string]error{}
	}
	l.failures[call] = err
}

// gate holds calls up.
type gate struct {
	reached, open chan struct{}
	once          sync.Once
}

// Slow makes one kind of call wait until release is called. The channel is closed when the first one waits.
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

// LoseAnswer makes the next call of a kind, "start", "upload", "finish" or "confirm", do its work and fail like a connection that breaks
// before the answer.
func (l *Launcher) LoseAnswer(call string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == nil {
		l.lost = map[string]bool{}
	}
	l.lost[call] = true
}

// answer is what a call that did its work returns. The caller holds mu.
func (l *Launcher) answer(call string) error {
	if !l.lost[call] {
		return nil
	}
	delete(l.lost, call)
	return fmt.Errorf("%s: %w: the connection broke", call, hypervisor.ErrUnreachable)
}

// Nudge tells the agent that something has changed although nothing has.
func (l *Launcher) Nudge() { l.change(func() {}) }

// Opens counts how often the agent asked for the launcher.
func (l *Launcher) Opens() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opens
}

// Stubborn makes the guest ignore its power button.
func (l *Launcher) Stubborn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stubborn = true
}

// AddFile puts a file into a directory of the Pod, as an image or a claim would bring it.
func (l *Launcher) AddFile(dir string, v hypervisor.Volume) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.Path = path.Join(dir, v.Name)
	p := l.poolAt(dir)
	p.volumes = append(p.volumes, v)
}

// SetGuest is what the guest agent tells from now on; it connects the agent's channel.
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

// SetState moves the domain to another state, as a guest or an operator would.
func (l *Launcher) SetState(state hypervisor.State, reason string) {
	l.change(func() {
		if l.domain != nil {
			l.domain.State, l.domain.Reason = state, reason
		}
	})
}

// Crash ends the domain as a killed QEMU does.
func (l *Launcher) Crash() { l.SetState(hypervisor.StateEnded, "Crashed") }

// Starts counts how often a domain was started.
func (l *Launcher) Starts() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.starts
}

// Shutdowns counts how often the power button was pressed.
func (l *Launcher) Shutdowns() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shutdowns
}

// Snapshot is the domain as it is now, or nil.
func (l *Launcher) Snapshot() *hypervisor.Domain {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.domain == nil {
		return nil
	}
	// The XML is copied: a test may alter it while the agent reads it.
	text, err := l.domain.XML.Marshal()
	snapshot := hypervisor.Domain{State: l.domain.State, Reason: l.domain.Reason, XML: &libvirtxml.Domain{}}
	if err != nil || snapshot.XML.Unmarshal(text) != nil {
		return nil
	}
	return &snapshot
}

// Content is what was uploaded to a volume.
func (l *Launcher) Content(name string) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.content[name]
}

// enter lets a call through, or fails it as the knobs say.
func (l *Launcher) enter(ctx context.Context, call string) error {
	l.mu.Lock()
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

// Domain describes the domain of a name.
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

// placed is a copy of a domain in which each virtio device has a PCI address.
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
		return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{Domain: &zero, Bus: &at, Slot: &zero, Function: &zero}}
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
	return l.answer("start")
}

// Shutdown presses the power button, upon which the domain ends unless it is stubborn.
func (l *Launcher) Shutdown(ctx context.Context, _ string) error {
	if err := l.enter(ctx, "shutdown"); err != nil {
		return err
	}
	l.change(func() {
		l.shutdowns++
		if l.domain.Active() && !l.stubborn {
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

// Guest is what SetGuest was given last.
func (l *Launcher) Guest(string) *hypervisor.GuestInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.guest
}

// Credentials brings the credentials into the guest at once, unless it was told to fail.
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

// InGuest are the credentials that were brought in last.
func (l *Launcher) InGuest() hypervisor.Credentials {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.credentials
}

// Process is nil: there is no process to look into.
func (l *Launcher) Process() *hypervisor.Process { return nil }

// poolAt returns what lies in a directory. The caller holds mu.
func (l *Launcher) poolAt(dir string) *pool {
	p, ok := l.pools[dir]
	if !ok {
		p = &pool{dir: dir}
		l.pools[dir] = p
	}
	return p
}

// Pool returns a directory as a pool.
func (l *Launcher) Pool(ctx context.Context, name, dir string) (*hypervisor.Pool, error) {
	if err := l.enter(ctx, "pool"); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.poolAt(dir)
	l.pools["name:"+name] = p
	return &hypervisor.Pool{Available: 10 << 30, Capacity: 20 << 30, Volumes: append([]hypervisor.Volume{}, p.volumes...)}, nil
}

// poolNamed is a pool that was asked for. The caller holds mu.
func (l *Launcher) poolNamed(name string) (*pool, error) {
	p, ok := l.pools["name:"+name]
	if !ok {
		return nil, fmt.Errorf("no storage pool %q", name)
	}
	return p, nil
}

// Create makes a volume.
func (l *Launcher) Create(ctx context.Context, poolName string, v hypervisor.Volume) error {
	if err := l.enter(ctx, "create"); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := l.poolNamed(poolName)
	if err != nil {
		return err
	}
	if _, refused := l.rootDirs[p.dir]; refused {
		return fmt.Errorf("cannot create path %q: %w", path.Join(p.dir, v.Name), fs.ErrPermission)
	}
	for _, old := range p.volumes {
		if old.Name == v.Name {
			return fmt.Errorf("storage volume %q exists already", v.Name)
		}
	}
	if below := l.file(v.BackingPath); v.Capacity == 0 && below != nil {
		v.Capacity = below.Capacity
	}
	v.Path = path.Join(p.dir, v.Name)
	p.volumes = append(p.volumes, v)
	return nil
}

// Resize makes a volume larger.
func (l *Launcher) Resize(ctx context.Context, poolName, name string, bytes uint64, filled bool) error {
	if err := l.enter(ctx, "resize"); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := l.poolNamed(poolName)
	if err != nil {
		return err
	}
	v := l.file(path.Join(p.dir, name))
	if v == nil || v.Capacity > bytes {
		return fmt.Errorf("storage volume %q is not there, or has more than %d bytes", name, bytes)
	}
	v.Capacity = bytes
	if filled {
		v.Allocation = bytes
	}
	return l.answer("resize")
}

// file is the file of a path, or nil. The caller holds mu.
func (l *Launcher) file(name string) *hypervisor.Volume {
	p, ok := l.pools[path.Dir(name)]
	if !ok {
		return nil
	}
	for i := range p.volumes {
		if p.volumes[i].Path == name {
			return &p.volumes[i]
		}
	}
	return nil
}

// Upload keeps a volume's content.
func (l *Launcher) Upload(ctx context.Context, _, name string, data []byte) error {
	if err := l.enter(ctx, "upload"); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.content[name] = append([]byte(nil), data...)
	return l.answer("upload")
}
