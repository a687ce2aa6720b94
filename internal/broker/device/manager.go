// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package device is the kubelet's device plugin for the devices that guests need: kvm, tun, vhost-net, vhost-vsock and
// userfaultfd. It advertises one of each for every guest that the node may run, as a device file can be opened any
// number of times. With kvm-probe, virt-handler's probe has KVM where the node has it.
package device

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// Names of the devices: the last part of their resource names.
const (
	KVM        = "kvm"
	TUN        = "tun"
	VhostNet   = "vhost-net"
	VhostVSOCK = "vhost-vsock"
	// Userfaultfd is needed by the target of a post-copy migration. A node without the device advertises it too, but
	// allocates nothing, so that guests can migrate there nevertheless.
	Userfaultfd = "userfaultfd"
	// KVMProbe is KVM for the probe of what the node can run, which must run on nodes without KVM too: they advertise it,
	// but allocate nothing.
	KVMProbe = "kvm-probe"
)

// restartDelay is the delay after a plugin failed, or after the kubelet has left it: the kubelet may be stopping.
const restartDelay = 2 * time.Second

// Options configures a Manager.
type Options struct {
	// PluginDir is the kubelet's directory of plugin sockets.
	PluginDir string
	// DevDir is where the node's /dev is mounted. The Manager opens no file in it.
	DevDir string
	// Count is how many guests the node may have.
	Count int
}

// device is a device of the node.
type device struct {
	// name is the last part of the resource's name.
	name string
	// path is the device's path on the node and in a Pod.
	path string
	// optional means that the device is always advertised.
	optional bool
	// count is how many of the device are advertised; 0 means one for each guest that the node may have.
	count int
}

var devices = []device{
	{name: KVM, path: "/dev/kvm"}, {name: TUN, path: "/dev/net/tun"}, {name: VhostNet, path: "/dev/vhost-net"},
	{name: VhostVSOCK, path: "/dev/vhost-vsock"}, {name: Userfaultfd, path: layout.PostCopyDevice, optional: true},
	// There is one probe on a node, and two while its Pod is replaced.
	{name: KVMProbe, path: "/dev/kvm", optional: true, count: 2},
}

// Manager advertises the devices that the node has, and again after each restart of the kubelet.
type Manager struct {
	options Options

	mu sync.Mutex
	// offered reports by the name of a device whether to advertise it, and registered whether a kubelet has accepted it
	// since the broker started. A kubelet that restarts does not reset that: see Usable.
	offered, registered map[string]bool
	// changed is closed and replaced when one of these changes.
	changed chan struct{}
}

// NewManager returns a Manager.
func NewManager(o Options) *Manager {
	m := &Manager{options: o, offered: map[string]bool{}, registered: map[string]bool{}, changed: make(chan struct{})}
	m.look()
	return m
}

// look finds out which devices the node has.
func (m *Manager) look() {
	for _, d := range devices {
		m.set(m.offered, d, d.optional || m.present(d))
	}
}

func (m *Manager) set(state map[string]bool, d device, value bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if state[d.name] != value {
		state[d.name] = value
		close(m.changed)
		m.changed = make(chan struct{})
	}
}

// Changed returns a channel that is closed when the result of Usable may have changed. It must be called before Usable.
func (m *Manager) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// Usable reports whether the device that every guest needs (tun) is available, and whether KVM is. Neither is known
// until the kubelet has accepted those of them that the node has. A restart of the kubelet changes nothing: the Node's
// label kubevirt.io/schedulable depends on the result, and a kubelet that finds another value when it admits its Pods
// again rejects those of running guests (ADR 18). Meanwhile the kubelet itself allows no new ones.
func (m *Manager) Usable() (usable, kvm, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known = (m.registered[TUN] || !m.offered[TUN]) && (m.registered[KVM] || !m.offered[KVM])
	return m.offered[TUN] && m.registered[TUN], m.offered[KVM] && m.registered[KVM], known
}

// isOffered reports whether to advertise a device.
func (m *Manager) isOffered(d device) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.offered[d.name]
}

// present reports whether the node has a device file.
func (m *Manager) present(d device) bool {
	info, err := os.Stat(filepath.Join(m.options.DevDir, strings.TrimPrefix(d.path, "/dev/")))
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Start advertises the devices until the context is done.
func (m *Manager) Start(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch devices: %w", err)
	}
	defer func() { _ = watcher.Close() }()
	for _, dir := range []string{m.options.PluginDir, m.options.DevDir, filepath.Join(m.options.DevDir, "net")} {
		if err := watcher.Add(dir); err != nil && dir == m.options.PluginDir {
			return fmt.Errorf("watch for the kubelet: %w", err)
		}
	}
	for ctx.Err() == nil {
		m.serveKubelet(ctx, watcher)
	}
	return nil
}

// serveKubelet serves the devices until the kubelet is restarted.
func (m *Manager) serveKubelet(ctx context.Context, watcher *fsnotify.Watcher) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, d := range devices {
		wg.Go(func() { m.serve(ctx, d) })
	}
	kubelet := filepath.Join(m.options.PluginDir, filepath.Base(pluginapi.KubeletSocket))
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-watcher.Errors:
			logr.FromContextOrDiscard(ctx).Error(err, "Cannot watch devices, continuing")
		case e := <-watcher.Events:
			if e.Name == kubelet && e.Has(fsnotify.Create) {
				// A kubelet that starts has no registrations and removes the sockets.
				logr.FromContextOrDiscard(ctx).Info("The kubelet was started, registering devices again")
				return
			}
			m.look()
		}
	}
}

// serve keeps a device registered until the context is done, from when the node has it for the first time.
func (m *Manager) serve(ctx context.Context, d device) {
	for changed := m.Changed(); !m.isOffered(d); changed = m.Changed() {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
	for ctx.Err() == nil {
		p := &plugin{Manager: m, device: d}
		err := p.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		logr.FromContextOrDiscard(ctx).Error(err, "Cannot advertise a device, retrying", "resource", p.resource())
		select {
		case <-ctx.Done():
		case <-time.After(restartDelay):
		}
		if errors.Is(err, errLeft) && !m.kubeletListens(ctx) {
			// It was stopped. When it is started, the device is registered at once, and not by this loop too.
			<-ctx.Done()
		}
	}
}

func (m *Manager) kubeletListens(ctx context.Context) bool {
	conn, err := (&net.Dialer{Timeout: registerTimeout}).DialContext(ctx, "unix",
		filepath.Join(m.options.PluginDir, filepath.Base(pluginapi.KubeletSocket)))
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// kubeletCalls is how many requests to the kubelet are in flight, for all Pods: it permits a burst of ten, and then 100
// in a second. Source: kubernetes pkg/kubelet/apis/podresources/constants.go.
const kubeletCalls = 8

// Devices are the node's devices for guests.
type Devices interface {
	// Usable reports whether the devices that every guest needs are available, whether KVM is, and whether that is known.
	Usable() (usable, kvm, known bool)
	// Changed returns a channel that is closed when the result of Usable may have changed.
	Changed() <-chan struct{}
}

// verbs are the verbs about what the kubelet assigns to guests.
type verbs struct {
	devices    Devices
	kubelet    PodResources
	podLogsDir string
	// limit limits the requests to the kubelet.
	limit *server.Limiter
}

// Verbs returns the verbs about what the kubelet assigns to guests, given the node's devices, the kubelet, and its
// directory with the logs of Pods.
func Verbs(devices Devices, kubelet PodResources, podLogsDir string) server.Verbs {
	v := verbs{
		devices: devices, kubelet: kubelet, podLogsDir: podLogsDir,
		limit: server.NewLimiter(kubeletCalls, 256,
			"too many requests to the kubelet are in flight: retry").InAll(kubeletCalls),
	}
	return server.Verbs{
		brokerapi.WatchDevices:  server.With(v.watchDevices),
		brokerapi.CPUPolicy:     server.With(v.cpuPolicy),
		brokerapi.ExclusiveCPUs: server.With(v.exclusiveCPUs),
	}
}

// watchDevices reports the state of the node's devices.
func (v verbs) watchDevices(string, server.None) (server.Task, error) {
	return server.Task{Watch: func() (server.Output, <-chan struct{}) {
		changed := v.devices.Changed()
		usable, kvm, known := v.devices.Usable()
		return server.Output{Result: brokerapi.DevicesResult{Known: known, Usable: usable, KVM: kvm}}, changed
	}}, nil
}

// cpuPolicy reads from the kubelet whether it assigns exclusive CPUs.
func (v verbs) cpuPolicy(string, server.None) (server.Task, error) {
	return server.Task{Limit: v.limit, Run: func(ctx context.Context) (server.Output, error) {
		static, err := v.kubelet.HasStaticCPUPolicy(ctx)
		return server.Output{Result: brokerapi.CPUPolicyResult{Static: static}}, err
	}}, nil
}

// exclusiveCPUs reads from the kubelet which CPUs it has assigned to the guest of a Pod exclusively.
func (v verbs) exclusiveCPUs(pod string, _ server.None) (server.Task, error) {
	return server.Task{Limit: v.limit, Run: func(ctx context.Context) (server.Output, error) {
		namespace, name, err := pods.Name(v.podLogsDir, pod)
		if err != nil {
			return server.Output{}, err
		}
		cpus, err := v.kubelet.ExclusiveCPUs(ctx, namespace, name, layout.ComputeContainer)
		return server.Output{Result: brokerapi.CPUsResult{CPUs: cpus}}, err
	}}, nil
}
