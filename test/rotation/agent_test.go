// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rotation

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"image"
	"image/png"
	"net"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/agent/server"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
	"github.com/vireo-project/vireo/test/rights"
)

// agent contains the parts of virt-handler that use certificates: its two servers, and its client of other agents. They
// run with the service account of virt-handler on its node, and with fake hypervisors.
type agent struct {
	w                          *world
	node                       string
	serving, migration, backup *certificate.Source
	consolePort, migrationPort int
	launchers                  *libvirt.Node
	targets                    *peer.Targets
	peers                      func(port int) *peer.Client
	api                        client.WithWatch // with the service account's rights
	incoming                   incoming

	mu     sync.Mutex
	caller *x509.Certificate // of virt-api's last request
}

// connections implements server.Options.Connections.
type connections struct{ *libvirt.Node }

func (m connections) Open(_ context.Context, pod hypervisor.PodRef) (server.Connection, error) {
	launcher, err := m.Node.Open(pod)
	if err != nil {
		return nil, err
	}
	return launcher, nil
}

// incoming is a cache with the one VMI that migrates to the node. List is not used.
type incoming struct {
	client.Reader
	vmi atomic.Pointer[v1.VirtualMachineInstance]
}

// Get implements client.Reader.
func (i *incoming) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	cached := i.vmi.Load()
	vmi, ok := into.(*v1.VirtualMachineInstance)
	if !ok || cached == nil || client.ObjectKeyFromObject(cached) != key {
		return apierrors.NewNotFound(schema.GroupResource{Group: v1.GroupName, Resource: "virtualmachineinstances"}, key.Name)
	}
	cached.DeepCopyInto(vmi)
	return nil
}

func startAgent(w *world, node string) *agent {
	w.t.Helper()
	config, _, err := rights.Handler.OnNode(context.Background(), w.config, w.client, node)
	w.g.Expect(err).NotTo(HaveOccurred())
	trust := certificate.Trust(w.trust)
	api, err := client.NewWithWatch(config, client.Options{Scheme: w.client.Scheme()})
	w.g.Expect(err).NotTo(HaveOccurred())
	a := &agent{
		api: api,
		w:   w, node: node, launchers: libvirt.NewNode(), targets: peer.NewTargets(),
		serving:   certificate.NewSource(config, certificate.AgentServing, certificate.AgentSubject(node), trust),
		migration: certificate.NewSource(config, certificate.AgentMigration, certificate.AgentMigrationSubject(node), trust),
		backup:    certificate.NewSource(config, certificate.AgentBackup, certificate.AgentBackupSubject(node), trust),
	}
	for _, source := range []*certificate.Source{a.serving, a.migration, a.backup} {
		source.Clock, source.Lifetimes = w.clock, func() clusterconfig.Certificates { return w.lifetimes }
		w.background("certificates of "+node, source.Start)
	}
	a.peers = func(port int) *peer.Client {
		return peer.NewClient(func(to string) (*tls.Config, error) {
			c, err := certificate.MigrationClient(a.migration, trust, to)
			if err == nil {
				c.Time = w.clock.Now
			}
			return c, err
		}, port)
	}

	guests, err := cache.New(config, cache.Options{Scheme: w.client.Scheme(), ByObject: map[client.Object]cache.ByObject{
		&corev1.Pod{}: {Field: fields.OneTermEqualSelector("spec.nodeName", node)},
	}})
	w.g.Expect(err).NotTo(HaveOccurred())
	w.g.Expect(guests.IndexField(context.Background(), &corev1.Pod{}, agentvmi.PodIndex, agentvmi.IndexPod)).To(Succeed())
	w.background("cache of "+node, guests.Start)
	consoles := certificate.AgentServer(a.serving, trust)
	consoles.Time = w.clock.Now
	verify := consoles.VerifyConnection
	consoles.VerifyConnection = func(state tls.ConnectionState) error {
		a.mu.Lock()
		a.caller = state.PeerCertificates[0]
		a.mu.Unlock()
		return verify(state)
	}
	served, err := server.New(server.Options{
		TLS: consoles, Node: node, Client: guests, Connections: connections{a.launchers},
		Responses: hypervisor.NewResponseBudget(),
	})
	w.g.Expect(err).NotTo(HaveOccurred())
	listener, port := w.listen()
	a.consolePort = port
	w.background("consoles of "+node, func(ctx context.Context) error { return served.Serve(ctx, listener) })
	a.serveMigrations(trust)
	return a
}

func (a *agent) serveMigrations(trust certificate.Trust) {
	migrations := certificate.MigrationServer(a.migration, trust)
	migrations.Time = a.w.clock.Now
	s, err := peer.NewServer(peer.ServerOptions{
		TLS: migrations, PeerNode: certificate.PeerNode, Node: a.node, Incoming: &a.incoming, Targets: a.targets,
		Open: func(pod hypervisor.PodRef) (peer.Launcher, error) { return a.launchers.Open(pod) },
		Tunnel: func(context.Context, hypervisor.PodRef) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go echo(theirs)
			return ours, nil
		},
		Run:   func(context.Context, types.NamespacedName, types.UID) (time.Duration, error) { return 0, nil },
		Clock: a.w.clock,
	})
	a.w.g.Expect(err).NotTo(HaveOccurred())
	listener, port := a.w.listen()
	a.migrationPort = port
	a.w.background("migrations to "+a.node, func(ctx context.Context) error { return s.Serve(ctx, listener) })
}

// lastCaller returns the client certificate of virt-api's last request.
func (a *agent) lastCaller() *x509.Certificate {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.caller
}

// run starts a guest in a Pod of the node.
func (a *agent) run(vmi *v1.VirtualMachineInstance, pod types.UID) {
	domain := &libvirtxml.Domain{Name: launcherpod.DomainName(vmi.Namespace, vmi.Name)}
	launcher := a.launchers.Launcher(pod)
	a.w.g.Expect(launcher.Start(context.Background(), domain, false)).To(Succeed())
	screen := &bytes.Buffer{}
	a.w.g.Expect(png.Encode(screen, image.NewGray(image.Rect(0, 0, 1, 1)))).To(Succeed())
	launcher.SetScreen(screen.Bytes())
}
