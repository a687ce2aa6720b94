// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/handler/handover"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/hypervisor/fake"
	"github.com/vireo-project/vireo/internal/handler/migrationtls"
	"github.com/vireo-project/vireo/internal/handler/reconciler"
)

var (
	errDead   = errors.New("the agent's process has ended")
	errCutOff = errors.New("the API server does not answer")
	errLost   = errors.New("the request was lost")
)

// fate is what an agent of a migration has to do with the world, and what becomes of it. A nil fate does nothing.
type fate struct {
	node string
	// ip and port are where it serves other agents.
	ip     string
	port   int
	server *tls.Config
	client func(string) (*tls.Config, error)

	// left is how many effects it may still have before its process ends, if it is positive.
	left atomic.Int32
	dead atomic.Bool
	// died is closed when it has.
	died chan struct{}
	// noAPI cuts it off from the API server, and loseReleases loses its releases.
	noAPI, loseReleases atomic.Bool
	// noPostCopy says that its Pods do not let QEMU take in a post-copy. It is set before anything is asked.
	noPostCopy bool

	mu      sync.Mutex
	effects []string
}

// do has an effect on the world, unless the process has ended. It may be the last one.
func (f *fate) do(what string, effect func() error) error {
	if f == nil {
		return effect()
	}
	if f.dead.Load() {
		return errDead
	}
	if what == "write" && f.noAPI.Load() {
		return errCutOff
	}
	err := effect()
	f.mu.Lock()
	f.effects = append(f.effects, what)
	f.mu.Unlock()
	if f.left.Add(-1) == 0 && !f.dead.Swap(true) {
		close(f.died)
	}
	if f.dead.Load() {
		// Nobody hears the answer.
		return errDead
	}
	return err
}

// had are the effects that it had.
func (f *fate) had() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.effects...)
}

func (f *fate) cutOff() bool { return f != nil && (f.dead.Load() || f.noAPI.Load()) }

func (f *fate) address() string {
	if f == nil {
		return "127.0.0.1"
	}
	return f.ip
}

func (f *fate) peers() handover.Peers {
	if f == nil {
		return nil
	}
	return &mortalPeers{Client: handover.NewClient(f.client, f.port), fate: f}
}

func (f *fate) machine(l *fake.Launcher) reconciler.Machine {
	if f == nil {
		return l
	}
	return &mortalMachine{Launcher: l, fate: f}
}

// serve serves other agents.
func (f *fate) serve(
	mgr ctrl.Manager, node string, incoming client.Reader, arrivals *handover.Arrivals, launchers *fake.Node, guests *reconciler.Reconciler,
) {
	GinkgoHelper()
	if f == nil {
		return
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(f.ip, itoa(f.port)))
	Expect(err).NotTo(HaveOccurred())
	s, err := handover.NewServer(handover.ServerOptions{
		TLS: f.server, Peer: certificate.PeerNode, Node: node, Incoming: incoming, Arrivals: arrivals,
		Open: func(pod hypervisor.PodRef) (handover.Launcher, error) {
			return f.machine(launchers.Launcher(pod.UID)), nil
		},
		Tunnel: func(_ context.Context, pod hypervisor.PodRef) (net.Conn, error) {
			return launchers.Launcher(pod.UID).MigrationConn(), nil
		},
		Sum: sumFile(launchers),
		Run: guests.RunReleased, PostCopy: func(context.Context, hypervisor.PodRef) bool { return !f.noPostCopy },
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return s.Serve(ctx, listener) }))).To(Succeed())
}

// sumFile reads the files of images in the launchers of a node.
func sumFile(launchers *fake.Node) handover.SumFile {
	return func(_ context.Context, pod hypervisor.PodRef, mount, name string) (handover.ImageSum, error) {
		size, crc, err := launchers.Launcher(pod.UID).Sum(path.Join(mount, name))
		return handover.ImageSum{Size: size, CRC32: crc}, err
	}
}

// mortalPeers are the other agents, as one sees them that may die.
type mortalPeers struct {
	*handover.Client
	fate *fate
}

func (p *mortalPeers) Destination(ctx context.Context, m handover.Migration) (d *handover.Destination, err error) {
	err = p.fate.do("ask where to", func() error {
		d, err = p.Client.Destination(ctx, m)
		return err
	})
	return d, err
}

func (p *mortalPeers) Release(ctx context.Context, m handover.Migration) (runs time.Duration, err error) {
	err = p.fate.do("release", func() error {
		if p.fate.loseReleases.Load() {
			return errLost
		}
		runs, err = p.Client.Release(ctx, m)
		return err
	})
	return runs, err
}

// mortalMachine is a hypervisor, as an agent sees it that may die.
type mortalMachine struct {
	*fake.Launcher
	fate *fate
}

// Copy dies with the agent, whose connections to libvirt end with it.
func (m *mortalMachine) Copy(ctx context.Context, r hypervisor.CopyRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-m.fate.died:
			cancel()
		case <-stop:
		}
	}()
	if err := m.fate.do("begin to copy", func() error { return nil }); err != nil {
		return err
	}
	return m.fate.do("copy", func() error { return m.Launcher.Copy(ctx, r) })
}

func (m *mortalMachine) CancelCopy(ctx context.Context, domain string) error {
	return m.fate.do("cancel", func() error { return m.Launcher.CancelCopy(ctx, domain) })
}

func (m *mortalMachine) ResumeSource(ctx context.Context, domain string) error {
	return m.fate.do("resume", func() error { return m.Launcher.ResumeSource(ctx, domain) })
}

func (m *mortalMachine) ResumeTarget(ctx context.Context, domain string) error {
	return m.fate.do("run", func() error { return m.Launcher.ResumeTarget(ctx, domain) })
}

func (m *mortalMachine) Destroy(ctx context.Context, domain string) error {
	return m.fate.do("destroy", func() error { return m.Launcher.Destroy(ctx, domain) })
}

func (m *mortalMachine) PutMigrationTLS(ctx context.Context, files migrationtls.Files) error {
	return m.fate.do("put certificates", func() error { return m.Launcher.PutMigrationTLS(ctx, files) })
}

func (m *mortalMachine) RemoveMigrationTLS(ctx context.Context) error {
	return m.fate.do("remove certificates", func() error { return m.Launcher.RemoveMigrationTLS(ctx) })
}
