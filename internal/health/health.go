// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package health answers GET /healthz of the components on the port of their metrics, in KubeVirt's words (kubevirt/kubevirt
// pkg/healthz). Its clients ask each Pod after a change of the KubeVirt object until the Pod goes by it. It also answers the kubelet's
// probes, at a port of their own.
package health

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"
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

	asking singleflight.Group
	last   atomic.Pointer[answer]
}

// answer is what is known of the API server.
type answer struct {
	at      time.Time
	version *version.Info
	err     error
}

// ServeHTTP implements http.Handler. Why the API server cannot be reached is logged: it may name addresses, and anybody may ask.
func (c *Check) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found, err := c.ask(r)
	code, server := http.StatusOK, map[string]any{"connectivity": "ok", "version": found}
	if err != nil {
		code, server = http.StatusInternalServerError, map[string]any{"connectivity": "failed", "error": "the API server cannot be reached"}
	}
	responsewriters.WriteRawJSON(code, map[string]any{"apiserver": server, "config-resource-version": c.ConfigVersion()}, w)
}

// ask asks the API server, once for all who want to know at the same time, unless that has just been done.
func (c *Check) ask(r *http.Request) (*version.Info, error) {
	if last := c.last.Load(); last != nil && time.Since(last.at) < keep {
		return last.version, last.err
	}
	done := c.asking.DoChan("", func() (any, error) {
		found, err := c.APIServer.ServerVersion()
		if err != nil {
			log.Log.WithName("health").Error(err, "Cannot reach the API server")
		}
		c.last.Store(&answer{at: time.Now(), version: found, err: err})
		return found, err
	})
	select {
	case result := <-done:
		if result.Err != nil {
			return nil, result.Err
		}
		return result.Val.(*version.Info), nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
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
