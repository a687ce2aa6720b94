// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package server serves the webhooks. Every Pod of the cluster can connect to it, and the API server presents no
// certificate: so only requests with a secret path reach a webhook (docs/adr/0098), and what clients can make it keep
// in memory is limited.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/vireo-project/vireo/internal/limits"
)

const (
	// maxConnections limits the open connections. An API server opens one for each request that it sends at a time, and
	// keeps 25.
	maxConnections = 1024
	// maxProtected is how many requests in service keep their connections when there are too many.
	maxProtected = maxConnections * 3 / 4
	// readTimeout bounds how long a request may take to arrive. The API server waits at most as long for the response of a
	// webhook.
	readTimeout = 30 * time.Second
	// headerTimeout bounds the handshake, and how long the headers of a request may take to arrive.
	headerTimeout = 10 * time.Second
	// writeTimeout bounds a request with its response, both of which may take the API server's timeout.
	writeTimeout = 2 * readTimeout
	// idleTimeout is that of the connections of Go's clients, of which the API server is one.
	idleTimeout = 90 * time.Second
	// maxHeader bounds the headers of a request, in bytes.
	maxHeader = 16 << 10
	// shutdownTimeout bounds how long shutdown waits for responses in flight.
	shutdownTimeout = time.Minute
)

// Options configure a Server.
type Options struct {
	// Address is where the server listens.
	Address string
	// TLS change the configuration of handshakes: they set the certificate, versions and ciphers.
	TLS []func(*tls.Config)
	// Webhook returns the name of the webhook that a path leads to, or false for a path that API servers do not use.
	Webhook func(path string) (name string, ok bool)
}

// Server is a manager's server of webhooks. The webhook of a name is registered with the path /name, and served at the
// paths for which Options.Webhook returns the name.
type Server struct {
	webhook.Server // registers webhooks and measures them
	options        Options
	started        atomic.Bool
}

// New returns a server that does not listen yet. It replaces the server of controller-runtime, which has no limits of
// connections, of memory and of the time for a request.
func New(o Options) *Server {
	return &Server{Server: webhook.NewServer(webhook.Options{WebhookMux: http.NewServeMux()}), options: o}
}

// Start implements manager.Runnable. It serves until the context ends.
func (s *Server) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.options.Address)
	if err != nil {
		return fmt.Errorf("cannot listen for requests of webhooks: %w", err)
	}
	// Without HTTP/2, whose streams would evade the limit of connections. The API server uses HTTP/1.1 for webhooks.
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	for _, change := range s.options.TLS {
		change(config)
	}
	server := manager.Server{
		Name: "webhooks", Server: newServer(s.handler()), ShutdownTimeout: ptr.To(shutdownTimeout),
		Listener: tls.NewListener(limits.Connections(listener, maxConnections), config),
	}
	s.started.Store(true)
	return server.Start(ctx)
}

var errNotStarted = errors.New("the webhooks are not served yet")

// StartedChecker implements webhook.Server.
func (s *Server) StartedChecker() healthz.Checker {
	return func(*http.Request) error {
		if s.started.Load() {
			return nil
		}
		return errNotStarted
	}
}

func newServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadTimeout: readTimeout, ReadHeaderTimeout: headerTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ConnContext: limits.ConnContext,
	}
}

// handler responds with 404 to a request with a path that API servers do not use, before it reads the body.
func (s *Server) handler() http.Handler {
	admitted := limits.Protected(newBodies(maxBodies).limit(s.WebhookMux()), maxProtected)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, ok := s.options.Webhook(r.URL.Path)
		if !ok {
			refuse(w, http.StatusNotFound)
			return
		}
		at := *r.URL
		at.Path, at.RawPath = "/"+name, ""
		webhook := r.WithContext(r.Context())
		webhook.URL = &at
		admitted.ServeHTTP(w, webhook)
	})
}

// refuse responds to a request and closes the connection: otherwise the body, which nothing has read, would be read
// first.
func refuse(w http.ResponseWriter, code int) {
	w.Header().Set("Connection", "close")
	http.Error(w, http.StatusText(code), code)
}

const (
	// maxBodies limits the bodies of the requests in flight, in bytes. Most are smaller than 100 KiB.
	maxBodies = 128 << 20
	// maxBody limits one body. It is controller-runtime's limit: two objects of the greatest size that the API server
	// accepts.
	maxBody = 7 << 20
)

// bodies limits the memory for bodies. The tenants of its shares are clients, by their addresses, so one that sends
// bodies without an end does not keep out the others.
type bodies struct{ shares *limits.Shares }

func newBodies(size int64) *bodies { return &bodies{limits.NewShares(size, 0)} }

// limit returns a handler that refuses requests whose bodies are beyond the limit. The API server repeats such a
// request, because the response has a Retry-After.
func (b *bodies) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := r.ContentLength
		if size < 0 {
			size = maxBody // of unknown length
		}
		if size > maxBody {
			refuse(w, http.StatusRequestEntityTooLarge)
			return
		}
		client := r.RemoteAddr
		if host, _, err := net.SplitHostPort(client); err == nil {
			client = host
		}
		if _, ok := b.shares.Take(client, size); !ok {
			w.Header().Set("Retry-After", "1")
			refuse(w, http.StatusTooManyRequests)
			return
		}
		defer b.shares.Give(client, size)
		next.ServeHTTP(w, r)
	})
}
