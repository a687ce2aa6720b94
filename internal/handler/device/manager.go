// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package device

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Names of the devices, which are the last part of their resource names.
const (
	KVM        = "kvm"
	TUN        = "tun"
	VhostNet   = "vhost-net"
	VhostVSOCK = "vhost-vsock"
	// Userfaultfd lets QEMU take in a post-copy. A node that lacks the device offers it as well, and gives nothing: a guest moves
	// there all the same.
	Userfaultfd = "userfaultfd"
)

// restartDelay is the pause after a plugin failed: the kubelet may be on its way down.
const restartDelay = 2 * time.Second

// Options is what a Manager works with.
type Options struct {
	// PluginDir is the kubelet's directory of plugin sockets.
	PluginDir string
	// DevDir is the node's /dev as the agent sees it. It is looked at, nothing in it is opened.
	DevDir string
	// Count is how many guests the node may have.
	Count int
}

// Manager advertises the devices that the node has, also after the kubelet was restarted.
type Manager struct {
	options Options
	plugins []*plugin
	changed chan struct{}
}

// NewManager makes a Manager.
func NewManager(o Options) *Manager {
	m := &Manager{options: o, changed: make(chan struct{}, 1)}
	for _, d := range []struct{ name, path string }{
		{KVM, "/dev/kvm"}, {TUN, "/dev/net/tun"}, {VhostNet, "/dev/vhost-net"}, {VhostVSOCK, "/dev/vhost-vsock"},
		{Userfaultfd, launcherpod.PostCopyDevice},
	} {
		p := &plugin{
			name: d.name, path: d.path, count: o.Count, dir: o.PluginDir, optional: d.name == Userfaultfd,
			present: func() bool { return m.present(d.path) }, changed: make(chan struct{}), notify: m.notify,
		}
		p.healthy = p.offered()
		m.plugins = append(m.plugins, p)
	}
	return m
}

// Changed has a value when Usable may say something else.
func (m *Manager) Changed() <-chan struct{} { return m.changed }

// Usable says whether guests can get what each of them needs (a tap), and whether KVM is there.
func (m *Manager) Usable() (usable, kvm bool) {
	for _, p := range m.plugins {
		switch p.name {
		case TUN:
			usable = p.usable()
		case KVM:
			kvm = p.usable()
		}
	}
	return usable, kvm
}

func (m *Manager) notify() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// present says whether the node has a device file.
func (m *Manager) present(path string) bool {
	info, err := os.Stat(m.onHost(path))
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (m *Manager) onHost(path string) string {
	rel, err := filepath.Rel("/dev", path)
	if err != nil {
		return path
	}
	return filepath.Join(m.options.DevDir, rel)
}

// Start advertises the devices until the context ends.
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
		m.round(ctx, watcher)
	}
	return nil
}

// round serves the devices until the kubelet is replaced by another one.
func (m *Manager) round(ctx context.Context, watcher *fsnotify.Watcher) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	started := map[string]bool{}
	m.startPresent(ctx, &wg, started)
	kubelet := filepath.Join(m.options.PluginDir, filepath.Base(pluginapi.KubeletSocket))
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-watcher.Errors:
			log.FromContext(ctx).Error(err, "Watching devices failed, it goes on")
		case e := <-watcher.Events:
			if e.Name == kubelet && e.Has(fsnotify.Create) {
				// A new kubelet knows no plugin and has removed their sockets.
				log.FromContext(ctx).Info("The kubelet was started, registering devices again")
				return
			}
			m.checkHealth()
			m.startPresent(ctx, &wg, started)
		}
	}
}

// startPresent serves each device that is there and not served yet. A device that the node lacks is not advertised.
func (m *Manager) startPresent(ctx context.Context, wg *sync.WaitGroup, started map[string]bool) {
	for _, p := range m.plugins {
		if started[p.name] || !p.offered() {
			continue
		}
		started[p.name] = true
		wg.Go(func() { m.serve(ctx, p) })
	}
}

// serve keeps a plugin registered until the context ends.
func (m *Manager) serve(ctx context.Context, p *plugin) {
	for ctx.Err() == nil {
		err := p.serve(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		log.FromContext(ctx).Error(err, "Cannot advertise a device, trying again", "resource", p.resource())
		select {
		case <-ctx.Done():
		case <-time.After(restartDelay):
		}
	}
}

func (m *Manager) checkHealth() {
	for _, p := range m.plugins {
		p.setHealthy(p.offered())
	}
}
