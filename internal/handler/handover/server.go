// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/handler/httpserver"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/migrationtls"
)

const (
	// headerTimeout and answerTimeout bound requests that do not stream. idleTimeout is long: the source asks at the beginning
	// and at the end, and the end should not wait for another handshake.
	headerTimeout = 10 * time.Second
	answerTimeout = 30 * time.Second
	idleTimeout   = 30 * time.Minute
	// maxHeader bounds a request but for its body, which only one kind has.
	maxHeader = 16 << 10
)

// Launcher is the hypervisor of a Pod that waits for a guest.
type Launcher interface {
	// PutMigrationTLS gives QEMU what it needs to show who it is.
	PutMigrationTLS(ctx context.Context, files migrationtls.Files) error
	// KeepState writes the EFI variables that last, and returns when all of the machine's state is on its claim's disk.
	KeepState(ctx context.Context, files hypervisor.StateFiles, nvram []byte) error
}

// ServerOptions is what a Server works with.
type ServerOptions struct {
	// TLS authenticates the server and verifies its clients: certificate.MigrationServer.
	TLS *tls.Config
	// Peer is the node whose agent the client of a connection is: certificate.PeerNode.
	Peer func(tls.ConnectionState) (string, error)
	// Address is where to listen.
	Address string
	// Node is the node's name.
	Node string
	// Incoming reads the VMIs that are on their way to the node, from a cache.
	Incoming client.Reader
	// Arrivals are the Pods that are ready for them.
	Arrivals *Arrivals
	// Open leads to the hypervisor of one of them.
	Open func(hypervisor.PodRef) (Launcher, error)
	// Tunnel connects to its libvirtd.
	Tunnel func(context.Context, hypervisor.PodRef) (net.Conn, error)
	// Run lets a guest run that was released, if it may, and returns for how long it has run. It is called before the source's agent
	// gets its answer.
	Run func(ctx context.Context, vmi types.NamespacedName, migration types.UID) (time.Duration, error)
	// PostCopy says whether QEMU can take in a post-copy in a Pod. It refuses a migration that merely may become one if not, at the
	// target only (migrate_caps_check in migration/options.c): the source needs nothing. Nil means that it cannot.
	PostCopy func(context.Context, hypervisor.PodRef) bool
	// Sum reads a file of a Pod. Nil means that guests with images are not taken in.
	Sum SumFile
	// Clock gives the time.
	Clock clock.PassiveClock
}

// Server serves the agents of nodes that guests leave for this one. It is a Runnable of a manager.
type Server struct {
	ServerOptions
	handler http.Handler

	// mu guards tunnels, the migrations whose libvirtd is in use.
	mu      sync.Mutex
	tunnels map[types.UID]bool
}

// NewServer makes a Server.
func NewServer(o ServerOptions) (*Server, error) {
	if o.TLS == nil || o.Peer == nil {
		return nil, errors.New("the server of migrations has no TLS configuration: it serves nobody without certificates")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	s := &Server{ServerOptions: o, tunnels: map[types.UID]bool{}}
	mux := http.NewServeMux()
	mux.Handle("GET "+below(destinationRequest), s.serve(s.destination))
	mux.Handle("GET "+below(tunnelRequest), s.serve(s.tunnel))
	if s.Sum != nil {
		mux.Handle("GET "+below(imagesRequest), s.serve(s.images))
	}
	mux.Handle("PUT "+below(stateRequest), s.serve(s.keepState))
	mux.Handle("POST "+below(releaseRequest), s.serve(s.release))
	s.handler = mux
	return s, nil
}

// NeedLeaderElection says that every agent serves its node.
func (*Server) NeedLeaderElection() bool { return false }

// Start serves until the context ends. Copies that go on through it end with it: libvirt at the source keeps the guest.
func (s *Server) Start(ctx context.Context) error {
	listener, err := httpserver.Listen(ctx, s.Address)
	if err != nil {
		return fmt.Errorf("serve migrations: %w", err)
	}
	return s.Serve(ctx, listener)
}

// Serve does what Start does, on a listener that is there.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: answerTimeout,
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

// request is one that was found to be about a guest on its way here, from the agent of the node that it leaves.
type request struct {
	vmi       types.NamespacedName
	migration types.UID
	arrival   Arrival
}

func (s *Server) serve(do func(http.ResponseWriter, *http.Request, request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, err := s.authorize(r)
		if err == nil {
			err = do(w, r, asked)
		}
		if err != nil {
			writeError(w, r, err)
		}
	})
}

// destination prepares QEMU's encryption and tells the source what it must know.
func (s *Server) destination(w http.ResponseWriter, r *http.Request, asked request) error {
	arrival := asked.arrival
	answer := Destination{
		Address: arrival.Address, Domain: arrival.Domain, Images: s.Sum != nil, Digests: arrival.Digests,
		PostCopy: s.PostCopy != nil && s.PostCopy(r.Context(), arrival.Pod),
	}
	if !arrival.Plain {
		// Anew for each question: what an earlier process made is known to nobody.
		address, err := netip.ParseAddr(arrival.Address)
		if err != nil {
			return fmt.Errorf("the address of the launcher Pod: %w", err)
		}
		pair, err := migrationtls.New(asked.migration, address, s.Clock.Now())
		if err != nil {
			return err
		}
		launcher, err := s.Open(arrival.Pod)
		if err != nil {
			return err
		}
		if err := launcher.PutMigrationTLS(r.Context(), pair.Server); err != nil {
			return fmt.Errorf("give QEMU its certificate: %w", err)
		}
		answer.TLSName, answer.TLS = migrationtls.Name(asked.migration), &pair.Client
	}
	httpserver.WriteJSON(w, http.StatusOK, answer)
	return nil
}

// release lets the guest run. It may come more than once.
func (s *Server) release(w http.ResponseWriter, r *http.Request, asked request) error {
	s.Arrivals.Release(asked.migration)
	runs, err := s.Run(r.Context(), asked.vmi, asked.migration)
	if err != nil {
		return err
	}
	httpserver.WriteJSON(w, http.StatusOK, Release{RunsForMs: uint64(runs.Milliseconds())})
	return nil
}

func writeError(w http.ResponseWriter, r *http.Request, err error) {
	status := metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: err.Error(),
	}
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &known):
		status = known.Status()
	case errors.Is(err, hypervisor.ErrConnecting), errors.Is(err, hypervisor.ErrUnreachable):
		status.Code, status.Reason = http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	// The details would repeat the path, at whatever length the peer chose.
	status.Message, status.Details = hypervisor.Clean(status.Message), nil
	log.FromContext(r.Context()).Info("Refused a request of another node's agent",
		"method", hypervisor.Clean(r.Method), "path", hypervisor.Clean(r.URL.Path), "code", status.Code, "error", hypervisor.Clean(err.Error()))
	httpserver.WriteJSON(w, int(status.Code), status)
}
