// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package server serves virt-api, and no other client, the verbs of the VMIs that run on the agent's node, on the paths
// of package agentapi.
//
// An error is a Kubernetes Status that names what failed: the request, the guest, libvirtd in the launcher Pod, or the
// connection to it. Streams are websockets. The close frame contains the reason why a stream was closed.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/httpserver"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/component/profiler"
	"github.com/vireo-project/vireo/internal/limits"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

const (
	// headerTimeout and bodyTimeout bound the reading of a request. Bodies are a few bytes.
	headerTimeout = 10 * time.Second
	bodyTimeout   = 30 * time.Second
	// responseTimeout bounds a request that is no stream. The slowest is a freeze, which waits for the guest.
	responseTimeout = 3 * time.Minute
	idleTimeout     = 2 * time.Minute
	// connectTimeout bounds the wait for a connection to the guest's hypervisor. virt-api waits for 15 seconds until the
	// agent listens and for 25 seconds in all, so that some remain for the verb.
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
	// Ready is closed when there is a certificate. Start does not listen before that: clients treat an agent that
	// rejects handshakes as broken, but wait for one that does not listen yet. If it is nil, Start listens at once.
	Ready <-chan struct{}
	// Address is the address to listen on.
	Address string
	// Node is the node's name.
	Node string
	// Client reads the node's VMIs and launcher Pods from a cache, with the index vmi.PodIndex.
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
	guestRequests *limits.Queue
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
		Options: o, sessions: newSessions(o.Limits), dialVSOCK: dialVSOCK,
		guestRequests: limits.NewQueueOf(limits.QueueLimits{
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
	s.sessions.closeAll(shutdown,
		&closeError{code: websocket.StatusGoingAway, reason: "virt-handler on the node is stopping, connect again"})
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

// vmiResource is the resource in errors, in the singular as in KubeVirt.
var vmiResource = v1.GroupVersion.WithResource("virtualmachineinstance").GroupResource()

// maxErrorText bounds the text of an error, which may contain text from a guest or its launcher. A websocket client
// reads at most 1 KiB of an error.
const maxErrorText = 600

func conflict(name, because string) error {
	return apierrors.NewConflict(vmiResource, name, errors.New(because))
}

func errNoVerb(r *http.Request) error {
	return refusal(http.StatusNotFound, metav1.StatusReasonNotFound,
		"virt-handler does not serve "+r.Method+" on this path")
}

// refusal returns a Status with exactly this message. The constructors of apierrors have messages of their own for some
// codes.
func refusal(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason,
		Message: message}}
}

// statusOf returns the Status of an error, with a message that names what failed.
func statusOf(err error) metav1.Status {
	var known apierrors.APIStatus
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &known):
		return known.Status()
	case errors.As(err, &tooLarge):
		return apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit)).ErrStatus
	case errors.Is(err, context.Canceled):
		return apierrors.NewServiceUnavailable("the request was canceled").ErrStatus
	case errors.Is(err, hypervisor.ErrNoDomain), errors.Is(err, hypervisor.ErrNotRunning):
		return statusFrom(http.StatusConflict, metav1.StatusReasonConflict, "the guest's state does not allow it", err)
	case errors.Is(err, errNoConnection):
		// KubeVirt's code and first words (pkg/virt-api/rest/portforward.go).
		return statusFrom(http.StatusInternalServerError, metav1.StatusReasonInternalError, "dialing VM", err)
	case errors.Is(err, hypervisor.ErrGuestSilent), errors.Is(err, hypervisor.ErrGuestRefused):
		return statusFrom(http.StatusInternalServerError, metav1.StatusReasonInternalError, "the guest agent failed", err)
	case errors.Is(err, hypervisor.ErrConnecting), errors.Is(err, hypervisor.ErrUnreachable):
		return statusFrom(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			"the agent has no connection to the guest's hypervisor, try again", err)
	default:
		return statusFrom(http.StatusInternalServerError, metav1.StatusReasonInternalError, "the guest's hypervisor refused",
			err)
	}
}

func statusFrom(code int32, reason metav1.StatusReason, prefix string, err error) metav1.Status {
	return metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason,
		Message: prefix + ": " + hypervisor.CleanLine(err.Error(), maxErrorText)}
}

func writeError(w http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	status.Message = hypervisor.CleanLine(status.Message, maxErrorText)
	log.FromContext(r.Context()).V(3).Info("Refused a request", "method", r.Method, "path", r.URL.Path, "code",
		status.Code, "error", err.Error())
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	httpserver.WriteJSON(w, int(status.Code), status)
}

// onlyVirtAPI rejects clients whose verified certificate does not have virt-api's name. The TLS configuration verifies
// the chain before this; onlyVirtAPI checks that it did, and the name: another role's certificate is rejected even if
// its authority is trusted.
func onlyVirtAPI(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.PeerCertificates) == 0 {
			writeError(w, r, apierrors.NewUnauthorized(
				"the agent serves only virt-api, and the client has no certificate that was verified"))
			return
		}
		if name := r.TLS.PeerCertificates[0].Subject.CommonName; name != agentapi.ClientName {
			writeError(w, r, apierrors.NewForbidden(schema.GroupResource{}, "",
				errors.New("the agent serves only virt-api, and the client's certificate is not virt-api's")))
			return
		}
		next.ServeHTTP(w, r)
	})
}
