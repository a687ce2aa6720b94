// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/agent/migrate/qemutls"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var (
	errProcessEnded = errors.New("the agent's process has ended")
	errDisconnected = errors.New("the API server does not respond")
	errLost         = errors.New("the request was lost")
)

// faults counts the effects of an agent in a migration and ends its process after some of them. A nil faults does
// nothing.
type faults struct {
	node string
	// ip and port are the address at which it serves other agents.
	ip     string
	port   int
	server *tls.Config
	client func(string) (*tls.Config, error)

	// left is the number of effects after which its process ends, if it is positive.
	left    atomic.Int32
	stopped atomic.Bool
	// ended is closed when its process has ended.
	ended chan struct{}
	// noAPI disconnects it from the API server, and loseReleases drops its releases.
	noAPI, loseReleases atomic.Bool
	// noPostCopy reports whether QEMU in its Pods cannot be the target of a post-copy. It is set before the migration.
	noPostCopy bool

	mu      sync.Mutex
	effects []string
}

// do runs an effect, unless the process has ended. The process may end after it.
func (f *faults) do(what string, effect func() error) error {
	if f == nil {
		return effect()
	}
	if f.stopped.Load() {
		return errProcessEnded
	}
	if what == "write" && f.noAPI.Load() {
		return errDisconnected
	}
	err := effect()
	f.mu.Lock()
	f.effects = append(f.effects, what)
	f.mu.Unlock()
	if f.left.Add(-1) == 0 && !f.stopped.Swap(true) {
		close(f.ended)
	}
	if f.stopped.Load() {
		// The result is lost with the process.
		return errProcessEnded
	}
	return err
}

// executed returns the effects so far.
func (f *faults) executed() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.effects)
}

func (f *faults) disconnected() bool { return f != nil && (f.stopped.Load() || f.noAPI.Load()) }

func (f *faults) address() string {
	if f == nil {
		return "127.0.0.1"
	}
	return f.ip
}

func (f *faults) peers() agentvmi.Peer {
	if f == nil {
		return nil
	}
	return &faultyPeers{Client: peer.NewClient(f.client, f.port), faults: f}
}

func (f *faults) connection(l *libvirt.Launcher) agentvmi.Connection {
	if f == nil {
		return l
	}
	return &faultyConnection{Launcher: l, faults: f}
}

// serve serves other agents.
func (f *faults) serve(
	mgr ctrl.Manager, node string, incoming client.Reader, targets *peer.Targets, launchers *libvirt.Node,
	guests *agentvmi.Reconciler,
) {
	GinkgoHelper()
	if f == nil {
		return
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(f.ip, itoa(f.port)))
	Expect(err).NotTo(HaveOccurred())
	s, err := peer.NewServer(peer.ServerOptions{
		TLS: f.server, PeerNode: certificate.PeerNode, Node: node, Incoming: incoming, Targets: targets,
		Open: func(pod hypervisor.PodRef) (peer.Launcher, error) {
			return f.connection(launchers.Launcher(pod.UID)), nil
		},
		Tunnel: func(_ context.Context, pod hypervisor.PodRef) (net.Conn, error) {
			return launchers.Launcher(pod.UID).MigrationConn(), nil
		},
		Checksum: sumFile(launchers),
		Run:      guests.RunReleased, PostCopy: func(context.Context, hypervisor.PodRef) bool { return !f.noPostCopy },
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return s.Serve(ctx, listener) }))).To(Succeed())
}

// sumFile returns a function that reads files of images in the launchers of a node.
func sumFile(launchers *libvirt.Node) peer.ChecksumFunc {
	return func(_ context.Context, pod hypervisor.PodRef, mount, name string) (peer.Checksum, error) {
		size, crc, err := launchers.Launcher(pod.UID).Sum(path.Join(mount, name))
		return peer.Checksum{Size: size, CRC32: crc}, err
	}
}

// faultyPeers are the connections to other agents of an agent with faults.
type faultyPeers struct {
	*peer.Client
	faults *faults
}

func (p *faultyPeers) Destination(ctx context.Context, m peer.Attempt) (d *peer.Destination, err error) {
	err = p.faults.do("get destination", func() error {
		d, err = p.Client.Destination(ctx, m)
		return err
	})
	return d, err
}

func (p *faultyPeers) Release(ctx context.Context, m peer.Attempt) (runs time.Duration, err error) {
	err = p.faults.do("release", func() error {
		if p.faults.loseReleases.Load() {
			return errLost
		}
		runs, err = p.Client.Release(ctx, m)
		return err
	})
	return runs, err
}

// faultyConnection is the connection to a hypervisor of an agent with faults.
type faultyConnection struct {
	*libvirt.Launcher
	faults *faults
}

// Transfer ends with the agent's process, as its connections to libvirt do.
func (m *faultyConnection) Transfer(ctx context.Context, r hypervisor.TransferRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-m.faults.ended:
			cancel()
		case <-stop:
		}
	}()
	if err := m.faults.do("start transfer", func() error { return nil }); err != nil {
		return err
	}
	return m.faults.do("transfer", func() error { return m.Launcher.Transfer(ctx, r) })
}

func (m *faultyConnection) CancelTransfer(ctx context.Context, domain string) error {
	return m.faults.do("cancel", func() error { return m.Launcher.CancelTransfer(ctx, domain) })
}

func (m *faultyConnection) ResumeSource(ctx context.Context, domain string) error {
	return m.faults.do("resume", func() error { return m.Launcher.ResumeSource(ctx, domain) })
}

func (m *faultyConnection) ResumeTarget(ctx context.Context, domain string) error {
	return m.faults.do("run", func() error { return m.Launcher.ResumeTarget(ctx, domain) })
}

func (m *faultyConnection) Destroy(ctx context.Context, domain string) error {
	return m.faults.do("destroy", func() error { return m.Launcher.Destroy(ctx, domain) })
}

func (m *faultyConnection) PutMigrationTLS(ctx context.Context, files qemutls.Files) error {
	return m.faults.do("put certificates", func() error { return m.Launcher.PutMigrationTLS(ctx, files) })
}

func (m *faultyConnection) RemoveMigrationTLS(ctx context.Context) error {
	return m.faults.do("remove certificates", func() error { return m.Launcher.RemoveMigrationTLS(ctx) })
}
