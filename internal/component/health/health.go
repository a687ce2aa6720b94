// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package health serves GET /healthz on the components' metrics port, in KubeVirt's format (kubevirt/kubevirt
// pkg/healthz), which contains the version of the configuration: clients poll it after changing the KubeVirt object
// until every Pod uses the change. The package also serves the kubelet's probes, on a separate port.
package health

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/vireo-project/vireo/internal/limits"
)

// Path is the path of the health check.
const Path = "/healthz"

// cacheTTL is how long the state of the API server is cached. The path needs no authentication, and requests must not
// load the API server.
const cacheTTL = time.Second

// Check is the handler of Path. It reports 200 if the API server is reachable, and 500 otherwise.
type Check struct {
	// APIServer requests the version of the API server.
	APIServer discovery.ServerVersionInterface
	// ConfigVersion returns the resourceVersion of the KubeVirt object that the process uses, empty without one.
	ConfigVersion func() string

	requests singleflight.Group
	last     atomic.Pointer[result]
}

// result is the cached result of a request to the API server.
type result struct {
	at      time.Time
	version *version.Info
	err     error
}

// ServeHTTP implements http.Handler. The error of reaching the API server is only logged: it may contain addresses, and
// clients are not authenticated.
func (c *Check) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	serverVersion, err := c.serverVersion(r)
	code, server := http.StatusOK, map[string]any{"connectivity": "ok", "version": serverVersion}
	if err != nil {
		code, server = http.StatusInternalServerError,
			map[string]any{"connectivity": "failed", "error": "the API server cannot be reached"}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	response := json.NewEncoder(w)
	response.SetIndent("", "  ")
	// An error means that the client is gone.
	_ = response.Encode(map[string]any{"apiserver": server, "config-resource-version": c.ConfigVersion()})
}

// serverVersion returns the version of the API server, from the cache if that is recent. Concurrent callers share one
// request.
func (c *Check) serverVersion(r *http.Request) (*version.Info, error) {
	if last := c.last.Load(); last != nil && time.Since(last.at) < cacheTTL {
		return last.version, last.err
	}
	done := c.requests.DoChan("", func() (any, error) {
		found, err := c.APIServer.ServerVersion()
		if err != nil {
			log.Log.WithName("health").Error(err, "Cannot reach the API server")
		}
		c.last.Store(&result{at: time.Now(), version: found, err: err})
		return found, err
	})
	select {
	case r := <-done:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*version.Info), nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

const (
	// ReadyPath is the path of the readiness probe. The liveness probe's is Path.
	ReadyPath = "/readyz"

	// maxConnections limits the open connections of the probe server, to which every Pod of the cluster can connect. The
	// kubelet opens one for each probe.
	maxConnections = 32
	// probeTimeout bounds a request with its response. The kubelet waits 10 seconds at most.
	probeTimeout = 10 * time.Second
	// maxProbeHeader bounds the headers of a request, in bytes. The kubelet's have less than 200.
	maxProbeHeader = 4 << 10
	// probeShutdown bounds how long shutdown waits for responses in flight.
	probeShutdown = time.Second
)

// WithProbes adds a server of the kubelet's probes to a manager, which serves the manager's checks at Path and
// ReadyPath. It replaces the server of controller-runtime, which has no limit of connections: the manager must not have
// a HealthProbeBindAddress.
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
		Name: "health probe", Server: probeServer(p.handler()), Listener: limits.Connections(listener, maxConnections),
		ShutdownTimeout: ptr.To(probeShutdown),
	}); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return p, nil
}

// probedManager is a manager whose checks are served by the server of WithProbes. Checks must be added before it
// starts.
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

// Ready returns a function that reports whether all readiness checks of a manager pass. The manager is one that
// WithProbes returned.
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
		Handler: handler, ReadTimeout: probeTimeout, ReadHeaderTimeout: probeTimeout, WriteTimeout: probeTimeout,
		MaxHeaderBytes: maxProbeHeader,
	}
	server.SetKeepAlivesEnabled(false)
	return server
}
