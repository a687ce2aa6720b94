// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"path"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/utils/clock"

	"github.com/vireo-project/vireo/internal/apiserver/subresource"
	"github.com/vireo-project/vireo/internal/component/health"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/component/profiler"
)

const (
	// requestTimeout bounds requests that do not stream. The slowest verbs query the guest agent, which responds within
	// seconds.
	requestTimeout = 30 * time.Second
	// maxBodyBytes bounds a request's body. The largest is that of expand-vm-spec, a VM; 1.5 MiB is etcd's limit for an
	// object.
	maxBodyBytes = 1536 * 1024
	// maxInFlight and maxMutatingInFlight bound the requests in flight that do not stream.
	maxInFlight, maxMutatingInFlight = 400, 200
	// shutdownDelay is how long the server keeps serving after shutdown starts, until endpoints no longer contain it.
	shutdownDelay = 5 * time.Second
)

// Options configure a Server.
type Options struct {
	// Address and Port are where the server listens.
	Address string
	Port    int
	// Listener replaces Address and Port in tests.
	Listener net.Listener
	// Certificate is the serving certificate. It may change, and may be empty at first: TLS handshakes fail until it is
	// set.
	Certificate dynamiccertificates.CertKeyContentProvider
	// Kubeconfig is that of the API server to which authentication and authorization are delegated. Default: the
	// in-cluster configuration.
	Kubeconfig string
	// RestrictTLS changes the server's TLS configuration, such as clusterconfig.Store.RestrictTLS. Default: TLS 1.2 or
	// newer.
	RestrictTLS func(*tls.Config)
	// Health serves /healthz without authentication. Default: the handler of the API server library.
	Health http.Handler
	// Profiles serves the paths of profiler.Paths, and admits clients by their certificates. Nil serves none.
	Profiles http.Handler
	// AuthorizeMetrics restricts /metrics to clients that may get it. Without it, everyone may, as in KubeVirt.
	AuthorizeMetrics bool
	// Clock measures StreamDrain; tests replace it.
	Clock clock.WithDelayedExecution
}

// config returns the configuration of a Kubernetes API server without storage: authentication by the front proxy's
// certificate and headers or by token, a SubjectAccessReview for each request, limits, audit and graceful shutdown.
func (o *Options) config(verbs []subresource.Verb) (*apiserver.Config, error) {
	scheme := runtime.NewScheme()
	// The library encodes its error responses as a Status of the unversioned group.
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config := apiserver.NewConfig(serializer.NewCodecFactory(scheme))
	config.EffectiveVersion = basecompatibility.NewEffectiveVersionFromString("", "", "")
	config.RequestInfoResolver = newResolver(verbs)
	config.LongRunningFunc = isLongRunning(verbs)
	config.RequestTimeout = requestTimeout
	config.MaxRequestsInFlight, config.MaxMutatingRequestsInFlight = maxInFlight, maxMutatingInFlight
	config.ShutdownDelayDuration = shutdownDelay
	config.SkipOpenAPIInstallation = true
	config.BuildHandlerChainFunc = o.withOpenPaths
	config.EnableIndex, config.EnableDiscovery, config.EnableProfiling, config.EnableMetrics = false, false, false, false
	for _, apply := range []func(*apiserver.Config) error{o.serve, o.authenticate, o.authorize} {
		if err := apply(config); err != nil {
			return nil, err
		}
	}
	return config, nil
}

// withOpenPaths serves what needs no authentication and authorization.
func (o *Options) withOpenPaths(handler http.Handler, config *apiserver.Config) http.Handler {
	return o.openPaths(handler, apiserver.DefaultBuildHandlerChain(protect(handler), config))
}

// openPaths sends requests that need neither to handler, and the others to chain.
func (o *Options) openPaths(handler, chain http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case o.Health != nil && path.Clean(r.URL.Path) == health.Path:
			// Some clients request //healthz. The other components' ServeMux redirects them.
			o.Health.ServeHTTP(w, r)
		case o.Profiles != nil && slices.Contains(profiler.Paths(), r.URL.Path):
			o.Profiles.ServeHTTP(w, r)
		case r.URL.Path == metrics.Path && !o.AuthorizeMetrics:
			handler.ServeHTTP(w, r)
		default:
			chain.ServeHTTP(w, r)
		}
	})
}

func (o *Options) serve(config *apiserver.Config) error {
	serving := options.NewSecureServingOptions()
	serving.BindAddress, serving.BindPort, serving.Listener = net.ParseIP(o.Address), o.Port, o.Listener
	serving.ServerCert = options.GeneratableKeyCert{GeneratedCert: o.Certificate}
	if err := serving.WithLoopback().ApplyTo(&config.SecureServing, &config.LoopbackClientConfig); err != nil {
		return fmt.Errorf("cannot serve: %w", err)
	}
	return nil
}

func (o *Options) authenticate(config *apiserver.Config) error {
	authentication := options.NewDelegatingAuthenticationOptions()
	authentication.RemoteKubeConfigFile = o.Kubeconfig
	if err := authentication.ApplyTo(&config.Authentication, config.SecureServing, nil); err != nil {
		return fmt.Errorf("cannot delegate authentication: %w", err)
	}
	return nil
}

func (o *Options) authorize(config *apiserver.Config) error {
	authorization := options.NewDelegatingAuthorizationOptions()
	authorization.RemoteKubeConfigFile = o.Kubeconfig
	// Discovery and OpenAPI are no secret, and the API server's aggregation layer reads them without any role.
	authorization.AlwaysAllowPaths = append(authorization.AlwaysAllowPaths, "/apis", "/apis/"+subresource.GroupName,
		"/openapi/*")
	for _, version := range subresource.Versions {
		root := "/apis/" + subresource.GroupName + "/" + version
		authorization.AlwaysAllowPaths = append(authorization.AlwaysAllowPaths, root)
	}
	if err := authorization.ApplyTo(&config.Authorization); err != nil {
		return fmt.Errorf("cannot delegate authorization: %w", err)
	}
	return nil
}
