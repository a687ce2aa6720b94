// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/fairqueue"
	"github.com/vireo-project/vireo/internal/agent/httpserver"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/vsock"
	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/component/profiler"
)

const (
	// headerTimeout and bodyTimeout bound the reading of a request. Bodies are a few bytes.
	headerTimeout = 10 * time.Second
	bodyTimeout   = 30 * time.Second
	// responseTimeout bounds a request that is no stream. The slowest is a freeze, which waits for the guest.
	responseTimeout = 3 * time.Minute
	idleTimeout     = 2 * time.Minute
	// connectTimeout bounds the wait for a connection to the guest's hypervisor. virt-api waits for 15 seconds until the agent listens and
	// for 25 seconds in all, so that some remain for the verb.
	connectTimeout = 7 * time.Second
	// shutdownTimeout bounds sending the close frames when the agent stops.
	shutdownTimeout = 5 * time.Second
	// maxHeader and maxBody bound a request.
	maxHeader = 16 << 10
	maxBody   = 64 << 10
)

// Options configures a Server.
type Options struct {
	// TLS authenticates the server and verifies its clients. The Server checks that a client is virt-api.
	TLS *tls.Config
	// Ready is closed when there is a certificate. Start does not listen before that: clients take an agent that rejects their handshakes as
	// broken, but wait for one that does not listen yet. Nil does not wait.
	Ready <-chan struct{}
	// Address is the address to listen on.
	Address string
	// Node is the node's name.
	Node string
	// Client reads the node's VMIs and launcher Pods from a cache, with the index reconciler.PodIndex.
	Client client.Reader
	// Connections are the connections to launchers.
	Connections Connections
	// Responses limits the memory for large responses of launchers. It is required.
	Responses *hypervisor.ResponseBudget
	// Profiles serves the paths of profiler.Paths. Nil serves none.
	Profiles http.Handler
	// Limits bounds what clients can use of the agent. Zero fields have the value of DefaultLimits.
	Limits Limits
}

// Server serves the verbs of the node's VMIs. It is a Runnable of a manager.
type Server struct {
	Options
	sessions *sessions
	handler  http.Handler
	// guestRequests queues requests to guest agents, freezes and screenshots.
	guestRequests *fairqueue.Queue
	// dialVSOCK connects to a VSOCK port of a guest.
	dialVSOCK func(ctx context.Context, cid, port uint32) (net.Conn, error)
}

// New returns a Server.
func New(o Options) (*Server, error) {
	if o.TLS == nil {
		return nil, errors.New("the server for virt-api has no TLS configuration")
	}
	if o.Responses == nil {
		return nil, errors.New("the server of consoles has no memory budget for responses")
	}
	o.Limits = o.Limits.withDefaults()
	s := &Server{
		Options: o, sessions: newSessions(o.Limits), dialVSOCK: vsock.Dial,
		guestRequests: fairqueue.NewWithLimits(fairqueue.Limits{
			Capacity:     int64(o.Limits.GuestRequests),
			PerNamespace: int64(min(o.Limits.GuestRequestsPerNamespace, o.Limits.GuestRequests)),
			QueueLength:  o.Limits.GuestRequestQueue,
		}),
	}
	s.handler = onlyVirtAPI(s.routes())
	return s, nil
}

// NeedLeaderElection reports whether only the leader runs this: no, every agent serves its node.
func (*Server) NeedLeaderElection() bool { return false }

// Start waits for a certificate and serves until the context is done, and then closes the streams with a reason.
func (s *Server) Start(ctx context.Context) error {
	if s.Ready != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-s.Ready:
		}
	}
	listener, err := httpserver.Listen(ctx, s.Address)
	if err != nil {
		return fmt.Errorf("serve consoles: %w", err)
	}
	return s.Serve(ctx, listener)
}

// Serve is Start with a given listener.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: responseTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: httpserver.ErrorLog(ctx),
		BaseContext: func(net.Listener) context.Context {
			return log.IntoContext(context.Background(), log.FromContext(ctx).WithName("server"))
		},
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(tls.NewListener(listener, s.tlsConfig())) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve consoles: %w", err)
	case <-ctx.Done():
	}
	shutdown, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	s.sessions.closeAll(shutdown, &closeError{code: websocket.StatusGoingAway, reason: "virt-handler on the node is stopping, connect again"})
	if err := server.Shutdown(shutdown); err != nil {
		_ = server.Close()
	}
	return nil
}

// tlsConfig returns the TLS configuration for HTTP/1.1: a websocket needs a connection of its own.
func (s *Server) tlsConfig() *tls.Config {
	config := s.TLS.Clone()
	config.NextProtos = []string{"http/1.1"}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	if of := config.GetConfigForClient; of != nil {
		config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := of(hello)
			if err != nil || chosen == nil {
				return chosen, err
			}
			chosen = chosen.Clone()
			chosen.NextProtos = []string{"http/1.1"}
			chosen.ClientAuth = tls.RequireAndVerifyClientCert
			return chosen, nil
		}
	}
	return config
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, verb := range map[string]verb{
		"GET /" + agentapi.Console:                            s.console,
		"GET /" + agentapi.VNC:                                s.vnc,
		"GET /" + agentapi.VSOCK:                              s.vsock,
		"GET /" + agentapi.USBRedir:                           s.usbRedir,
		"PUT /" + agentapi.Pause:                              act(Connection.Pause),
		"PUT /" + agentapi.Unpause:                            act(Connection.Unpause),
		"PUT /" + agentapi.Reset:                              act(Connection.Reset),
		"PUT /" + agentapi.SoftReboot:                         act(Connection.Reboot),
		"GET /" + agentapi.Screenshot:                         s.queued(s.screenshot),
		"GET /" + agentapi.GuestOSInfo:                        s.queued(guestOSInfo),
		"GET /" + agentapi.UserList:                           s.queued(userList),
		"GET /" + agentapi.FilesystemList:                     s.queued(filesystemList),
		"PUT /" + agentapi.Freeze:                             s.queued(freeze),
		"PUT /" + agentapi.Unfreeze:                           unfreeze,
		"GET /" + agentapi.PortForward + "/{port}":            s.portForward,
		"GET /" + agentapi.PortForward + "/{port}/{protocol}": s.portForward,
	} {
		method, path, _ := strings.Cut(pattern, " ")
		mux.Handle(method+" /v1/namespaces/{namespace}/virtualmachineinstances/{name}"+path, s.serve(verb))
	}
	profiler.Register(mux, s.Profiles)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { writeError(w, r, errNoVerb(r)) })
	return mux
}
