// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package health answers GET /healthz of the components on the port of their metrics, in KubeVirt's words (kubevirt/kubevirt
// pkg/healthz). Its clients ask each Pod after a change of the KubeVirt object until the Pod goes by it.
package health

import (
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// Path is where the answer is.
const Path = "/healthz"

// keep is how long what is known of the API server is good for. Anybody may ask, and the API server is asked for nobody twice a
// second.
const keep = time.Second

// Check tells how a process is.
type Check struct {
	// APIServer tells whether the API server is there.
	APIServer discovery.ServerVersionInterface
	// ConfigVersion is the resourceVersion of the KubeVirt object that the process goes by, empty without one.
	ConfigVersion func() string

	mu     sync.Mutex
	at     time.Time
	code   int
	server map[string]any
}

// ServeHTTP implements http.Handler.
func (c *Check) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	code, server := c.ask()
	responsewriters.WriteRawJSON(code, map[string]any{"apiserver": server, "config-resource-version": c.ConfigVersion()}, w)
}

func (c *Check) ask() (int, map[string]any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); c.server == nil || now.Sub(c.at) >= keep {
		version, err := c.APIServer.ServerVersion()
		if err != nil {
			c.code, c.server = http.StatusInternalServerError, map[string]any{"connectivity": "failed", "error": err.Error()}
		} else {
			c.code, c.server = http.StatusOK, map[string]any{"connectivity": "ok", "version": version}
		}
		c.at = now
	}
	return c.code, c.server
}

// Filter lets those in who may get metrics, and everybody to Path, as KubeVirt does: it tells nothing that is secret.
func Filter(config *rest.Config, client *http.Client) (metricsserver.Filter, error) {
	secured, err := filters.WithAuthenticationAndAuthorization(config, client)
	if err != nil {
		return nil, err
	}
	return func(log logr.Logger, handler http.Handler) (http.Handler, error) {
		guarded, err := secured(log, handler)
		if err != nil {
			return nil, err
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == Path {
				handler.ServeHTTP(w, r)
				return
			}
			guarded.ServeHTTP(w, r)
		}), nil
	}, nil
}
