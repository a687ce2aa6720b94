// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"crypto/tls"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	apiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/limits"
)

// Limits of connections, as those of a Kubernetes API server. Source: k8s.io/apiserver pkg/server/secure_serving.go.
const (
	idleTimeout       = 90 * time.Second
	readHeaderTimeout = 32 * time.Second
	maxStreams        = 100
)

// Limits of what each connection can make virt-api keep in memory before it knows the client. They are smaller than
// those of a Kubernetes API server, 1 MiB and 256 KiB: maxConnections times as much would be more than virt-api's
// memory limit.
const (
	// maxHeaderBytes limits the headers of a request, with the user's token, or with the groups that the API server sends.
	maxHeaderBytes = 64 << 10
	// frameBuffer limits a frame of HTTP/2, for which there is a buffer as soon as it begins. It is the smallest limit
	// that HTTP/2 allows.
	frameBuffer = 16 << 10
	// streamBuffer limits what of a body is kept until it is read. Some 2000 requests can wait for the API server to
	// review their tokens.
	streamBuffer = 64 << 10
)

const (
	// maxConnections limits the open connections. Every Pod can open some, and the API server's aggregation layer opens
	// one for each stream, of which there may be 1000.
	maxConnections = 2048
	// maxProtected is how many authenticated requests keep their connections when there are too many.
	maxProtected = maxConnections * 3 / 4
)

// frontend serves in place of the HTTP server of the API server library, which reads the TLS versions and ciphers only
// once. The library has the frontend as its listener: its first Accept starts the frontend's server, its Close stops
// it, and no connection reaches the library's server.
type frontend struct {
	net.Listener
	server   *http.Server
	tls      *dynamiccertificates.DynamicServingCertificateController
	timeout  time.Duration
	start    sync.Once
	stop     sync.Once
	stopping chan struct{}
	stopped  chan struct{}
}

// newFrontend replaces the listener of a server. restrict changes the TLS configuration last.
func newFrontend(generic *apiserver.GenericAPIServer, restrict func(*tls.Config)) *frontend {
	info := generic.SecureServingInfo
	// The handshake accepts any client certificate, and clients without one: an authenticator verifies it, and others
	// use tokens.
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		ClientAuth: tls.RequestClientCert}
	f := &frontend{
		Listener: limits.Connections(info.Listener, maxConnections), timeout: generic.ShutdownTimeout,
		stopping: make(chan struct{}), stopped: make(chan struct{}),
		tls: dynamiccertificates.NewDynamicServingCertificateController(config.Clone(), info.ClientCA,
			info.Cert, info.SNICerts, nil),
	}
	for _, source := range []dynamiccertificates.Notifier{info.ClientCA, info.Cert} {
		if source != nil {
			source.AddListener(f.tls)
		}
	}
	config.GetConfigForClient = f.tls.GetConfigForClient
	if restrict != nil {
		restrict(config)
	}
	f.server = newHTTPServer(generic.Handler, config)
	info.Listener = f
	return f
}

func newHTTPServer(handler http.Handler, config *tls.Config) *http.Server {
	return &http.Server{
		Handler: handler, TLSConfig: config, MaxHeaderBytes: maxHeaderBytes, IdleTimeout: idleTimeout,
		ReadHeaderTimeout: readHeaderTimeout,
		ConnContext:       limits.ConnContext,
		ErrorLog:          stdlog.New(handshakeLog{log.Log.WithName("server")}, "", 0),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReadFrameSize: frameBuffer,
			MaxReceiveBufferPerStream: streamBuffer, MaxReceiveBufferPerConnection: maxStreams * streamBuffer,
		},
	}
}

// Accept implements net.Listener. It returns when the frontend is closed.
func (f *frontend) Accept() (net.Conn, error) {
	var err error
	f.start.Do(func() { err = f.serve() })
	if err != nil {
		return nil, err
	}
	<-f.stopping
	return nil, net.ErrClosed
}

func (f *frontend) serve() error {
	if err := f.tls.RunOnce(); err != nil {
		log.Log.Error(err, "The serving certificate cannot be used yet")
	}
	go f.tls.Run(1, f.stopping)
	finished, listenerClosed, err := apiserver.RunServer(f.server, f.Listener, f.timeout, f.stopping)
	if err != nil {
		close(f.stopped)
		return fmt.Errorf("cannot serve: %w", err)
	}
	go func() {
		<-listenerClosed
		<-finished
		close(f.stopped)
	}()
	return nil
}

// Close implements net.Listener. Requests in flight continue.
func (f *frontend) Close() error {
	f.stop.Do(func() { close(f.stopping) })
	return nil
}

// wait closes the frontend and returns when it serves no request any more.
func (f *frontend) wait() {
	_ = f.Close()
	f.start.Do(func() {
		close(f.stopped)
		_ = f.Listener.Close()
	})
	<-f.stopped
}

// protect returns a handler that protects the connections of users who have authenticated, as long as it serves their
// requests.
func protect(handler http.Handler) http.Handler {
	protected := limits.Protected(handler, maxProtected)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, known := request.UserFrom(r.Context()); known && !slices.Contains(u.GetGroups(), user.AllUnauthenticated) {
			protected.ServeHTTP(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// handshakeLog logs failed handshakes, which unauthenticated clients cause, at a high verbosity.
type handshakeLog struct{ logr.Logger }

// Write logs a line.
func (l handshakeLog) Write(line []byte) (int, error) {
	l.V(3).Info("A connection failed", "error", strings.TrimSpace(string(line)))
	return len(line), nil
}
