// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package health

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/vireo-project/vireo/internal/component/connectionlimit"
)

const (
	// ReadyPath is the path of the readiness probe. The liveness probe's is Path.
	ReadyPath = "/readyz"

	// maxConnections limits the open connections of the probe server, to which every Pod of the cluster can connect. The kubelet
	// opens one for each probe.
	maxConnections = 32
	// probeTimeout bounds a request with its response. The kubelet waits 10 seconds at most.
	probeTimeout = 10 * time.Second
	// maxProbeHeader bounds the headers of a request, in bytes. The kubelet's have less than 200.
	maxProbeHeader = 4 << 10
	// probeShutdown bounds how long shutdown waits for responses in flight.
	probeShutdown = time.Second
)

// WithProbes adds a server of the kubelet's probes to a manager, which serves the manager's checks at Path and ReadyPath. It
// replaces the server of controller-runtime, which has no limit of connections: the manager must not have a
// HealthProbeBindAddress.
func WithProbes(mgr ctrl.Manager, address string) (ctrl.Manager, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for the kubelet's probes: %w", err)
	}
	p := &probedManager{
		Manager: mgr,
		healthy: &healthz.Handler{Checks: map[string]healthz.Checker{}},
		ready:   &healthz.Handler{Checks: map[string]healthz.Checker{}},
	}
	// The manager starts a Server before its caches.
	if err := mgr.Add(&manager.Server{
		Name: "health probe", Server: probeServer(p.handler()), Listener: connectionlimit.New(listener, maxConnections), ShutdownTimeout: ptr.To(probeShutdown),
	}); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return p, nil
}

// probedManager is a manager whose checks are served by the server of WithProbes. Checks must be added before it starts.
type probedManager struct {
	ctrl.Manager
	healthy, ready *healthz.Handler
}

// AddHealthzCheck implements manager.Manager.
func (p *probedManager) AddHealthzCheck(name string, check healthz.Checker) error {
	return add(p.healthy, name, check)
}

// AddReadyzCheck implements manager.Manager.
func (p *probedManager) AddReadyzCheck(name string, check healthz.Checker) error {
	return add(p.ready, name, check)
}

// Ready returns a function that reports whether all readiness checks of a manager pass. The manager is one that WithProbes
// returned.
func Ready(mgr ctrl.Manager) func() bool {
	p, probed := mgr.(*probedManager)
	return func() bool {
		if !probed {
			return false
		}
		request := &http.Request{}
		for _, check := range p.ready.Checks {
			if check(request) != nil {
				return false
			}
		}
		return true
	}
}

func add(to *healthz.Handler, name string, check healthz.Checker) error {
	if _, exists := to.Checks[name]; exists {
		return fmt.Errorf("there are two checks %s", name)
	}
	to.Checks[name] = check
	return nil
}

func (p *probedManager) handler() http.Handler {
	mux := http.NewServeMux()
	for path, checks := range map[string]http.Handler{Path: p.healthy, ReadyPath: p.ready} {
		mux.Handle(path, http.StripPrefix(path, checks))
		mux.Handle(path+"/", http.StripPrefix(path, checks)) // a single check
	}
	return mux
}

// probeServer returns a server without keep-alive: the kubelet uses a new connection for each probe.
func probeServer(handler http.Handler) *http.Server {
	server := &http.Server{
		Handler: handler, ReadTimeout: probeTimeout, ReadHeaderTimeout: probeTimeout, WriteTimeout: probeTimeout, MaxHeaderBytes: maxProbeHeader,
	}
	server.SetKeepAlivesEnabled(false)
	return server
}
