// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"fmt"
	"net"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/options"
	basecompatibility "k8s.io/component-base/compatibility"

	"github.com/vireo-project/vireo/internal/health"
	"github.com/vireo-project/vireo/internal/subresource"
)

const (
	// requestTimeout bounds what does not stream. The guest's agent, which some verbs ask, answers within seconds or not.
	requestTimeout = 30 * time.Second
	// maxBodyBytes bounds a request's body. The largest is a VM to expand, which etcd would not take if it were larger.
	maxBodyBytes = 1536 * 1024
	// maxInFlight and maxMutatingInFlight bound the requests that do not stream.
	maxInFlight, maxMutatingInFlight = 400, 200
	// farewell is how long the server answers on after it was told to stop: endpoints follow with a delay.
	farewell = 5 * time.Second
)

// Options are what an administrator sets.
type Options struct {
	// Address and Port are where to listen.
	Address string
	Port    int
	// Listener replaces them in tests.
	Listener net.Listener
	// Certificate is that of the server. It may change, and may have nothing at first: no connection is taken until then.
	Certificate dynamiccertificates.CertKeyContentProvider
	// Kubeconfig is that of the API server which authenticates and authorizes; empty means the one of the cluster that
	// virt-api runs in.
	Kubeconfig string
	// Health answers /healthz, to anybody. Nil leaves the answer of Kubernetes' machinery.
	Health http.Handler
}

// chain is the configuration of a Kubernetes API server without storage: authentication by the API server's proxy (its
// certificate, then its headers) or by token, one SubjectAccessReview for each request, limits, audit and a shutdown that
// lets requests end.
func (o *Options) chain(verbs []subresource.Verb) (*apiserver.Config, error) {
	scheme := runtime.NewScheme()
	// The chain answers refusals with a Status of the unversioned group.
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config := apiserver.NewConfig(serializer.NewCodecFactory(scheme))
	config.EffectiveVersion = basecompatibility.NewEffectiveVersionFromString("", "", "")
	config.RequestInfoResolver = newResolver(verbs)
	config.LongRunningFunc = streams(verbs)
	config.RequestTimeout = requestTimeout
	config.MaxRequestsInFlight, config.MaxMutatingRequestsInFlight = maxInFlight, maxMutatingInFlight
	config.ShutdownDelayDuration = farewell
	config.SkipOpenAPIInstallation = true
	if o.Health != nil {
		config.BuildHandlerChainFunc = o.withHealth
	}
	config.EnableIndex, config.EnableDiscovery, config.EnableProfiling = false, false, false
	for _, apply := range []func(*apiserver.Config) error{o.serve, o.authenticate, o.authorize} {
		if err := apply(config); err != nil {
			return nil, err
		}
	}
	return config, nil
}

// withHealth answers /healthz before anybody is asked for a right.
func (o *Options) withHealth(handler http.Handler, config *apiserver.Config) http.Handler {
	chain := apiserver.DefaultBuildHandlerChain(handler, config)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == health.Path {
			o.Health.ServeHTTP(w, r)
			return
		}
		chain.ServeHTTP(w, r)
	})
}

func (o *Options) serve(config *apiserver.Config) error {
	serving := options.NewSecureServingOptions()
	serving.BindAddress, serving.BindPort, serving.Listener = net.ParseIP(o.Address), o.Port, o.Listener
	serving.ServerCert = options.GeneratableKeyCert{GeneratedCert: o.Certificate}
	serving.MinTLSVersion = "VersionTLS12"
	// Streams begin with an upgrade, which HTTP/2 does not have.
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
	// What there is to ask for is no secret, and the API server's aggregation layer asks for it before anybody else.
	authorization.AlwaysAllowPaths = append(authorization.AlwaysAllowPaths, "/apis", "/apis/"+subresource.GroupName, "/openapi/*")
	for _, version := range subresource.Versions {
		root := "/apis/" + subresource.GroupName + "/" + version
		authorization.AlwaysAllowPaths = append(authorization.AlwaysAllowPaths, root)
	}
	if err := authorization.ApplyTo(&config.Authorization); err != nil {
		return fmt.Errorf("cannot delegate authorization: %w", err)
	}
	return nil
}
