// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package health serves GET /healthz on the components' metrics port, in KubeVirt's format (kubevirt/kubevirt pkg/healthz), which
// contains the version of the configuration: clients poll it after changing the KubeVirt object until every Pod uses the change.
// The package also serves the kubelet's probes, on a separate port.
package health

import (
	"encoding/json"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Path is the path of the health check.
const Path = "/healthz"

// cacheTTL is how long the state of the API server is cached. The path needs no authentication, and requests must not load the
// API server.
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

// ServeHTTP implements http.Handler. The error of reaching the API server is only logged: it may contain addresses, and clients
// are not authenticated.
func (c *Check) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	serverVersion, err := c.serverVersion(r)
	code, server := http.StatusOK, map[string]any{"connectivity": "ok", "version": serverVersion}
	if err != nil {
		code, server = http.StatusInternalServerError, map[string]any{"connectivity": "failed", "error": "the API server cannot be reached"}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	response := json.NewEncoder(w)
	response.SetIndent("", "  ")
	// An error means that the client is gone.
	_ = response.Encode(map[string]any{"apiserver": server, "config-resource-version": c.ConfigVersion()})
}

// serverVersion returns the version of the API server, from the cache if that is recent. Concurrent callers share one request.
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
