// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package health

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

const (
	// ReadyPath is where the kubelet asks whether a process is ready. Whether it lives is at Path.
	ReadyPath = "/readyz"

	// maxConnections is how many connections the kubelet's server has at a time. Each Pod of the cluster can open some; the kubelet
	// opens one for each probe.
	maxConnections = 32
	// probeTimeout is how long a request and its answer may take. The kubelet waits 10 seconds at most.
	probeTimeout = 10 * time.Second
	// maxProbeHeader is how much of a request is read. The kubelet's has less than 200 bytes.
	maxProbeHeader = 4 << 10
	// probeShutdown is how long the end of the process waits for answers that are being given.
	probeShutdown = time.Second
)

// WithProbes has a manager serve its checks to the kubelet, at Path and ReadyPath. The manager must have no HealthProbeBindAddress: a
// server of controller-runtime takes any number of connections.
func WithProbes(mgr ctrl.Manager, address string) (ctrl.Manager, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for the kubelet's probes: %w", err)
	}
	p := &probed{
		Manager: mgr,
		healthy: &healthz.Handler{Checks: map[string]healthz.Checker{}},
		ready:   &healthz.Handler{Checks: map[string]healthz.Checker{}},
	}
	// The manager starts a Server before its caches.
	if err := mgr.Add(&manager.Server{
		Name: "health probe", Server: probeServer(p.handler()), Listener: limit(listener, maxConnections), ShutdownTimeout: ptr.To(probeShutdown),
	}); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return p, nil
}

// probed is a manager with checks of its own. They are added before it starts.
type probed struct {
	ctrl.Manager
	healthy, ready *healthz.Handler
}

// AddHealthzCheck implements manager.Manager.
func (p *probed) AddHealthzCheck(name string, check healthz.Checker) error {
	return add(p.healthy, name, check)
}

// AddReadyzCheck implements manager.Manager.
func (p *probed) AddReadyzCheck(name string, check healthz.Checker) error {
	return add(p.ready, name, check)
}

func add(to *healthz.Handler, name string, check healthz.Checker) error {
	if _, there := to.Checks[name]; there {
		return fmt.Errorf("there are two checks %s", name)
	}
	to.Checks[name] = check
	return nil
}

func (p *probed) handler() http.Handler {
	mux := http.NewServeMux()
	for path, checks := range map[string]http.Handler{Path: p.healthy, ReadyPath: p.ready} {
		mux.Handle(path, http.StripPrefix(path, checks))
		mux.Handle(path+"/", http.StripPrefix(path, checks)) // one check by its name
	}
	return mux
}

// probeServer ends each connection with the answer: the kubelet uses none twice, and one that is idle serves nobody.
func probeServer(handler http.Handler) *http.Server {
	server := &http.Server{
		Handler: handler, ReadTimeout: probeTimeout, ReadHeaderTimeout: probeTimeout, WriteTimeout: probeTimeout, MaxHeaderBytes: maxProbeHeader,
	}
	server.SetKeepAlivesEnabled(false)
	return server
}

// limited is a listener with a bounded number of connections. The oldest gives way to a new one: if the new one waited instead, whoever
// opens connections and is silent could have the kubelet end the process.
type limited struct {
	net.Listener
	most int

	mu sync.Mutex
	// open has the connections, the oldest first.
	open []*limitedConn
}

func limit(l net.Listener, most int) *limited { return &limited{Listener: l, most: most} }

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &limitedConn{Conn: accepted, listener: l}
	if oldest := l.add(conn); oldest != nil {
		_ = oldest.Close()
	}
	return conn, nil
}

// add adds a connection and returns the one that gives way to it, or nil.
func (l *limited) add(conn *limitedConn) *limitedConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, conn)
	if len(l.open) > l.most {
		return l.open[0]
	}
	return nil
}

type limitedConn struct {
	net.Conn
	listener *limited
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.listener.mu.Lock()
	c.listener.open = slices.DeleteFunc(c.listener.open, func(other *limitedConn) bool { return other == c })
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
