// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/httpserver"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/qemutls"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

const (
	// headerTimeout and responseTimeout bound requests that do not stream. idleTimeout is long: the source sends requests
	// at the start and at the end, and the release should not wait for another handshake.
	headerTimeout   = 10 * time.Second
	responseTimeout = 30 * time.Second
	idleTimeout     = 30 * time.Minute
	// maxHeader bounds a request's headers. Only stateRequest and bitmapsRequest have a body.
	maxHeader = 16 << 10
)

// Launcher is the connection to the libvirtd of a target's Pod.
type Launcher interface {
	// PutMigrationTLS writes the certificates for the Pod's QEMU.
	PutMigrationTLS(ctx context.Context, files qemutls.Files) error
	// KeepState writes the persistent EFI variables, and returns when all of the guest's persistent state is on its
	// claim's disk.
	KeepState(ctx context.Context, files hypervisor.StateFiles, nvram []byte) error
	overlayWriter
}

// overlayWriter writes to the overlays of the guest's tracked disks.
type overlayWriter interface {
	// TargetState returns the state of the migration to this Pod.
	TargetState(ctx context.Context, domain string) (protocol.TargetDomain, error)
	// Pool returns a directory as a storage pool with its current volumes.
	Pool(ctx context.Context, name, dir string) (*hypervisor.Pool, error)
	// UploadAt writes a part of a volume.
	UploadAt(ctx context.Context, pool, name string, at uint64, data []byte) error
}

// ServerOptions configures a Server.
type ServerOptions struct {
	// TLS authenticates the server and verifies its clients: certificate.MigrationServer.
	TLS *tls.Config
	// PeerNode returns the node of the agent that is the client of a connection: certificate.PeerNode.
	PeerNode func(tls.ConnectionState) (string, error)
	// Address is where to listen.
	Address string
	// Node is the node's name.
	Node string
	// Incoming reads the VMIs that migrate to the node, from a cache.
	Incoming client.Reader
	// Targets are their prepared targets.
	Targets *Targets
	// Open returns the connection to the libvirtd of a target's Pod.
	Open func(hypervisor.PodRef) (Launcher, error)
	// Tunnel makes a new connection to that libvirtd.
	Tunnel func(context.Context, hypervisor.PodRef) (net.Conn, error)
	// Run lets a released guest run, if package protocol allows it, and returns for how long it has run. It is called
	// before the response to the release.
	Run func(ctx context.Context, vmi types.NamespacedName, migration types.UID) (time.Duration, error)
	// PostCopy reports whether QEMU supports post-copy in a target's Pod. Without support, the target's QEMU refuses a
	// migration that may become a post-copy (migrate_caps_check in migration/options.c). The source needs no support. Nil
	// means no support.
	PostCopy func(context.Context, hypervisor.PodRef) bool
	// Checksum reads a file of a Pod. Nil means that guests with images are refused.
	Checksum ChecksumFunc
	// Clock gives the time.
	Clock clock.PassiveClock
}

// Server serves the agents of the sources of migrations to this node. It is a Runnable of a manager.
type Server struct {
	ServerOptions
	handler http.Handler

	// mu guards tunnels: the migrations that have a tunnel open.
	mu      sync.Mutex
	tunnels map[types.UID]bool
}

// NewServer makes a Server.
func NewServer(o ServerOptions) (*Server, error) {
	if o.TLS == nil || o.PeerNode == nil {
		return nil, errors.New("the server of migrations has no TLS configuration or no function PeerNode")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	s := &Server{ServerOptions: o, tunnels: map[types.UID]bool{}}
	mux := http.NewServeMux()
	mux.Handle("GET "+pattern(destinationRequest), s.serve(s.destination))
	mux.Handle("GET "+pattern(tunnelRequest), s.serve(s.tunnel))
	if s.Checksum != nil {
		mux.Handle("GET "+pattern(imagesRequest), s.serve(s.images))
	}
	mux.Handle("PUT "+pattern(stateRequest), s.serve(s.keepState))
	mux.Handle("PUT "+pattern(bitmapsRequest), s.serve(s.keepBitmaps))
	mux.Handle("POST "+pattern(releaseRequest), s.serve(s.release))
	s.handler = mux
	return s, nil
}

// NeedLeaderElection is false: every agent serves its node.
func (*Server) NeedLeaderElection() bool { return false }

// Start serves until the context ends. Then the tunnels are closed, and their migrations fail: the guests stay at their
// sources.
func (s *Server) Start(ctx context.Context) error {
	listener, err := httpserver.Listen(ctx, s.Address)
	if err != nil {
		return fmt.Errorf("serve migrations: %w", err)
	}
	return s.Serve(ctx, listener)
}

// Serve is Start with a given listener.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: responseTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog:    httpserver.ErrorLog(ctx),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(tls.NewListener(listener, s.TLS)); ctx.Err() == nil {
		return fmt.Errorf("serve migrations: %w", err)
	}
	return nil
}

// request is an authorized request: about a migration to this node, from the agent of its source.
type request struct {
	vmi       types.NamespacedName
	migration types.UID
	target    Target
}

func (s *Server) serve(do func(http.ResponseWriter, *http.Request, request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := s.authorize(r)
		if err == nil {
			err = do(w, r, req)
		}
		if err != nil {
			writeError(w, r, err)
		}
	})
}

// destination writes certificates for the target's QEMU and returns the Destination.
func (s *Server) destination(w http.ResponseWriter, r *http.Request, req request) error {
	target := req.target
	d := Destination{
		Address: target.Address, Domain: target.Domain, Images: s.Checksum != nil, Bitmaps: true, Digests: target.Digests,
		PostCopy: s.PostCopy != nil && s.PostCopy(r.Context(), target.Pod),
	}
	if !target.Plain {
		// New certificates for each request: those of an earlier process are lost with it.
		address, err := netip.ParseAddr(target.Address)
		if err != nil {
			return fmt.Errorf("the address of the launcher Pod: %w", err)
		}
		pair, err := qemutls.New(req.migration, address, s.Clock.Now())
		if err != nil {
			return err
		}
		launcher, err := s.Open(target.Pod)
		if err != nil {
			return err
		}
		if err := launcher.PutMigrationTLS(r.Context(), pair.Server); err != nil {
			return fmt.Errorf("write the certificate of QEMU: %w", err)
		}
		d.TLSName, d.TLS = qemutls.Name(req.migration), &pair.Client
	}
	httpserver.WriteJSON(w, http.StatusOK, d)
	return nil
}

// release lets the guest run. It may be sent more than once.
func (s *Server) release(w http.ResponseWriter, r *http.Request, req request) error {
	s.Targets.Release(req.migration)
	runs, err := s.Run(r.Context(), req.vmi, req.migration)
	if err != nil {
		return err
	}
	httpserver.WriteJSON(w, http.StatusOK, Release{RunsForMs: uint64(runs.Milliseconds())})
	return nil
}

func writeError(w http.ResponseWriter, r *http.Request, err error) {
	status := metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError,
		Message: err.Error(),
	}
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &known):
		status = known.Status()
	case errors.Is(err, hypervisor.ErrConnecting), errors.Is(err, hypervisor.ErrUnreachable):
		status.Code, status.Reason = http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	// Details would repeat the path, which the peer can make long.
	status.Message, status.Details = hypervisor.Clean(status.Message), nil
	log.FromContext(r.Context()).Info("Refused a request of another node's agent",
		"method", hypervisor.Clean(r.Method), "path", hypervisor.Clean(r.URL.Path), "code", status.Code, "error",
		hypervisor.Clean(err.Error()))
	httpserver.WriteJSON(w, int(status.Code), status)
}

var migrationResource = schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachineinstancemigrations"}

// authorize returns what a request is about, if it is allowed. The VMI's status decides: it must have this migration,
// to this node, from the node of the client's certificate, and not ended. The path only selects the VMI.
func (s *Server) authorize(r *http.Request) (request, error) {
	if r.TLS == nil {
		return request{}, apierrors.NewUnauthorized("the connection is not encrypted")
	}
	node, err := s.PeerNode(*r.TLS)
	if err != nil {
		return request{}, apierrors.NewUnauthorized(err.Error())
	}
	req := request{
		vmi:       types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")},
		migration: types.UID(r.PathValue("uid")),
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := s.Incoming.Get(r.Context(), req.vmi, vmi); err != nil {
		if apierrors.IsNotFound(err) {
			// The response does not reveal which VMIs exist.
			return request{}, s.notHere(req)
		}
		return request{}, fmt.Errorf("read the VirtualMachineInstance: %w", err)
	}
	m := vmi.Status.MigrationState
	switch {
	case m == nil || m.MigrationUID != req.migration || m.TargetNode != s.Node:
		return request{}, s.notHere(req)
	case m.SourceNode != node:
		return request{}, apierrors.NewForbidden(migrationResource, string(req.migration),
			fmt.Errorf("the agent of node %s is not that of the migration's source", node))
	case m.Failed:
		return request{}, conflict(req, "the migration has failed")
	case isRelease(r):
		// The target may own the guest already. ServerOptions.Run finds the Pod.
		return req, nil
	case vmistatus.HasEnded(m):
		return request{}, conflict(req, "the migration has ended")
	}
	target, ready := s.Targets.Get(req.migration)
	if !ready {
		// This process was restarted and has not prepared the target yet.
		return request{}, apierrors.NewServiceUnavailable("the target is not prepared, try again")
	}
	if target.Refusal != "" {
		return request{}, conflict(req, target.Refusal)
	}
	req.target = target
	return req, nil
}

func isRelease(r *http.Request) bool { return r.Method == http.MethodPost }

func (s *Server) notHere(req request) error {
	return apierrors.NewNotFound(migrationResource, string(req.migration))
}

func conflict(req request, why string) error {
	return apierrors.NewConflict(migrationResource, string(req.migration), errors.New(why))
}

// Target is the launcher Pod of a migration on its target node, once it is ready to receive the guest or refuses it.
type Target struct {
	// Pod is the launcher Pod.
	Pod hypervisor.PodRef
	// Address is where its QEMU listens.
	Address string
	// Domain is the XML of the domain as it would be started here.
	Domain string
	// Refusal is why the guest cannot be received; empty if it can.
	Refusal string
	// Digests are the digests by which the Pod's spec names images: see podspec.ImageDigests.
	Digests map[string]string
	// Plain reports whether the transfer is not encrypted.
	Plain bool
}

// Targets stores the targets of migrations to this node, by the migration's UID. An agent that is restarted prepares
// them again. It does not remember releases: then the guest runs once the target owns it according to the VMI's status.
type Targets struct {
	mu       sync.Mutex
	prepared map[types.UID]Target
	released map[types.UID]bool
}

// NewTargets makes empty Targets.
func NewTargets() *Targets {
	return &Targets{prepared: map[types.UID]Target{}, released: map[types.UID]bool{}}
}

// Put stores the target of a migration.
func (t *Targets) Put(migration types.UID, target Target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prepared[migration] = target
}

// Get returns the target of a migration, and whether there is one.
func (t *Targets) Get(migration types.UID) (Target, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	target, ok := t.prepared[migration]
	return target, ok
}

// Release stores that the source's agent has released the guest: the source's will never run again.
func (t *Targets) Release(migration types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.released[migration] = true
}

// IsReleased reports whether the source's agent has released the guest to this process.
func (t *Targets) IsReleased(migration types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.released[migration]
}

// Forget removes a migration that has ended, and all migrations to a Pod.
func (t *Targets) Forget(pod, migration types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.prepared, migration)
	delete(t.released, migration)
	for uid, target := range t.prepared {
		if target.Pod.UID == pod {
			delete(t.prepared, uid)
			delete(t.released, uid)
		}
	}
}
