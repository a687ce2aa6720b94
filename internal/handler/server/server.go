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

	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/handler/httpserver"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/handler/turns"
	"github.com/vireo-project/vireo/internal/handler/vsock"
)

const (
	// headerTimeout and bodyTimeout bound how long a request may take to arrive. Bodies are a few bytes.
	headerTimeout = 10 * time.Second
	bodyTimeout   = 30 * time.Second
	// answerTimeout bounds a request that does not stream. The slowest is a freeze, which waits for the guest.
	answerTimeout = 3 * time.Minute
	idleTimeout   = 2 * time.Minute
	// farewell is how long the streams have for telling their clients that they end.
	farewell = 5 * time.Second
	// maxHeader and maxBody bound a request.
	maxHeader = 16 << 10
	maxBody   = 64 << 10
)

// Options is what a Server works with.
type Options struct {
	// TLS authenticates the server and verifies its clients. That a client is virt-api is checked here.
	TLS *tls.Config
	// Address is where to listen.
	Address string
	// Node is the node's name.
	Node string
	// Client reads the node's VMIs and launcher Pods from a cache, with the index reconciler.PodIndex.
	Client client.Reader
	// Machines leads to the hypervisors.
	Machines Machines
	// Answers shares the memory for answers of launchers that are not small.
	Answers *hypervisor.Answers
	// Limits bound what clients can take of the agent; what is zero is as in DefaultLimits.
	Limits Limits
}

// Server serves the verbs of the node's instances. It is a Runnable of a manager.
type Server struct {
	Options
	sessions *sessions
	handler  http.Handler
	// questions are the turns of questions to guests, freezes and images of screens.
	questions *turns.Turns
	// dialVSOCK connects to guests over VSOCK.
	dialVSOCK func(ctx context.Context, cid, port uint32) (net.Conn, error)
}

// New makes a Server.
func New(o Options) (*Server, error) {
	if o.TLS == nil {
		return nil, errors.New("the server of consoles has no TLS configuration: it serves nobody without certificates")
	}
	o.Limits = o.Limits.withDefaults()
	s := &Server{
		Options: o, sessions: newSessions(o.Limits), dialVSOCK: vsock.Dial,
		questions: turns.WithLimits(turns.Limits{
			Total: int64(o.Limits.Questions), PerNamespace: int64(min(o.Limits.QuestionsPerNamespace, o.Limits.Questions)), Waiting: o.Limits.QuestionsWaiting,
		}),
	}
	s.handler = onlyVirtAPI(s.routes())
	return s, nil
}

// NeedLeaderElection says that every agent serves its node.
func (*Server) NeedLeaderElection() bool { return false }

// Start serves until the context ends, and then ends the streams with a word why.
func (s *Server) Start(ctx context.Context) error {
	listener, err := httpserver.Listen(ctx, s.Address)
	if err != nil {
		return fmt.Errorf("serve consoles: %w", err)
	}
	return s.Serve(ctx, listener)
}

// Serve does what Start does, on a listener that is there.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: answerTimeout,
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
	last, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	s.sessions.end(last, &ending{code: websocket.StatusGoingAway, reason: "virt-handler on the node is stopping, connect again"})
	if err := server.Shutdown(last); err != nil {
		_ = server.Close()
	}
	return nil
}

// tlsConfig is the given one, for HTTP/1.1: websockets need a connection to themselves.
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
		"PUT /" + agentapi.Pause:                              act(Machine.Pause),
		"PUT /" + agentapi.Unpause:                            act(Machine.Unpause),
		"PUT /" + agentapi.Reset:                              act(Machine.Reset),
		"PUT /" + agentapi.SoftReboot:                         act(Machine.Reboot),
		"GET /" + agentapi.Screenshot:                         s.question(s.screenshot),
		"GET /" + agentapi.GuestOSInfo:                        s.question(guestOSInfo),
		"GET /" + agentapi.UserList:                           s.question(userList),
		"GET /" + agentapi.FilesystemList:                     s.question(filesystemList),
		"PUT /" + agentapi.Freeze:                             s.question(freeze),
		"PUT /" + agentapi.Unfreeze:                           act(Machine.Thaw),
		"GET /" + agentapi.PortForward + "/{port}":            s.portForward,
		"GET /" + agentapi.PortForward + "/{port}/{protocol}": s.portForward,
	} {
		method, path, _ := strings.Cut(pattern, " ")
		mux.Handle(method+" /v1/namespaces/{namespace}/virtualmachineinstances/{name}"+path, s.serve(verb))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { writeError(w, r, errNoVerb(r)) })
	return mux
}
