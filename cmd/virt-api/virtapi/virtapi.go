// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package virtapi assembles virt-api: the server of subresources.kubevirt.io, its certificates and its logger.
package virtapi

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/apiserver/agentclient"
	"github.com/vireo-project/vireo/internal/apiserver/profile"
	"github.com/vireo-project/vireo/internal/apiserver/server"
	"github.com/vireo-project/vireo/internal/apiserver/subresource"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/health"
	"github.com/vireo-project/vireo/internal/component/livelog"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/component/profiler"
	"github.com/vireo-project/vireo/internal/component/requestlimit"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// Run runs virt-api until the context ends, and returns when all requests have finished.
func Run(ctx context.Context, config *rest.Config, o *Options, l *livelog.Log) error {
	if err := o.Validate(); err != nil {
		return err
	}
	ctx = ctrl.LoggerInto(ctx, l.Logger)
	store := clusterconfig.NewStore()
	limiter := requestlimit.New(store.Current().RateLimits.API)
	config = limiter.Config(config)
	metrics.CountRequests(config)
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	reader, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("cannot make a client: %w", err)
	}
	version, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make a client: %w", err)
	}
	follow, err := followConfig(ctx, config, reader, store, o)
	if err != nil {
		return err
	}
	store.Subscribe(l.Subscriber(func(v clusterconfig.Verbosity) uint { return v.API }))
	store.Subscribe(limiter.Subscriber(
		func(limits clusterconfig.RateLimits) clusterconfig.RateLimit { return limits.API }))
	trust := certificate.Trust(o.TrustDirectory)
	serving := certificate.NewSource(config, certificate.APIServing, certificate.APIServingSubject(o.Namespace), trust)
	own := certificate.NewSource(config, certificate.APIClient, certificate.APIClientSubject(), trust)
	serving.Lifetimes, own.Lifetimes = store.Certificates, store.Certificates
	now := time.Now
	if o.Clock != nil {
		serving.Clock, own.Clock, now = o.Clock, o.Clock, o.Clock.Now
	}
	connect := connection{own: own, trust: trust, namespace: o.Namespace, now: now}
	check := &health.Check{APIServer: version, ConfigVersion: store.Version}
	api := &subresource.API{
		Client: reader, Config: store.Current, Health: check, GuestfsImage: o.GuestfsImage,
		Profiles: &profile.Client{Pods: reader, Namespace: o.Namespace, TLS: connect.to},
		Agents: agentclient.New(agentclient.Options{
			Pods: reader, Namespace: o.Namespace, Port: o.ConsoleServerPort,
			TLS: func(node string) (*tls.Config, error) { return connect.to(profile.Handler, node) },
		}),
	}
	s, err := server.New(server.Options{
		Address: o.Address, Port: o.Port, Listener: o.Listener, Certificate: content{serving}, Kubeconfig: o.Kubeconfig,
		RestrictTLS: store.RestrictTLS, Health: check, AuthorizeMetrics: o.MetricsAuthorization,
		Profiles: ownProfiles(store, trust, now),
	}, api.Verbs)
	if err != nil {
		return err
	}
	l.Info("Starting virt-api", "namespace", o.Namespace, "port", o.Port)
	return run(ctx, s, serving.Issued(), append(follow, serving, own)...)
}

// streamServer is the part of server.Server that run uses.
type streamServer interface {
	Run(ctx context.Context) error
	CutStreams()
}

// run starts the server when ready is closed, and the runnables at once. The runnables are stopped after the server,
// which needs certificates until its last request has finished. If a runnable fails, the server is stopped, and its
// streams do not delay that: it has no certificates or no configuration any more.
func run(ctx context.Context, s streamServer, ready <-chan struct{}, runnables ...manager.Runnable) error {
	runnablesCtx, stopRunnables := context.WithCancel(context.WithoutCancel(ctx))
	group, runnablesCtx := errgroup.WithContext(runnablesCtx)
	for _, r := range runnables {
		group.Go(func() error { return r.Start(runnablesCtx) })
	}
	serverCtx, stopServer := context.WithCancel(ctx)
	defer stopServer()
	release := context.AfterFunc(runnablesCtx, func() {
		s.CutStreams()
		stopServer()
	})
	var err error
	select {
	case <-ready:
		err = s.Run(serverCtx)
	case <-serverCtx.Done():
	}
	release()
	stopRunnables()
	if failed := group.Wait(); failed != nil {
		return failed
	}
	return err
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	return scheme, nil
}

// followConfig loads the cluster's configuration into the store, and returns the runnables that update it.
func followConfig(
	ctx context.Context, config *rest.Config, reader client.Client, store *clusterconfig.Store, o *Options,
) ([]manager.Runnable, error) {
	if err := store.Load(ctx, reader, o.Namespace); err != nil {
		return nil, err
	}
	objects, err := cache.New(config, cache.Options{
		Scheme:           reader.Scheme(),
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1.KubeVirt{}: {Namespaces: map[string]cache.Config{o.Namespace: {}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make a cache: %w", err)
	}
	return []manager.Runnable{objects, store.Follow(objects, o.Namespace)}, nil
}

// content adapts a Source to the interface of the API server library for certificates that change.
type content struct{ *certificate.Source }

var _ dynamiccertificates.CertKeyContentProvider = content{}

// Name implements dynamiccertificates.CertKeyContentProvider.
func (content) Name() string { return "virt-api-serving" }

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider.
func (c content) CurrentCertKeyContent() (crt, key []byte) { return c.PEM() }

// AddListener implements dynamiccertificates.Notifier.
func (c content) AddListener(l dynamiccertificates.Listener) { c.OnChange(l.Enqueue) }

const (
	// namespaceEnv is the environment variable with the install namespace, which the Deployment sets.
	namespaceEnv = "POD_NAMESPACE"
	// defaultTrust is where the Deployment mounts the ConfigMap of CA certificates.
	defaultTrust = "/etc/virt-api/trust"
)

// Options are virt-api's flags. Names and defaults are KubeVirt's where KubeVirt has them.
type Options struct {
	// Address and Port are where virt-api listens.
	Address string
	Port    int
	// ConsoleServerPort is the port of the agents.
	ConsoleServerPort int
	// Namespace is the install namespace.
	Namespace string
	// TrustDirectory contains the CA certificates, one file for each role.
	TrustDirectory string
	// GuestfsImage is the image of libguestfs-tools; empty if there is none.
	GuestfsImage string
	// MetricsAuthorization restricts the metrics to clients that may get the URL /metrics.
	MetricsAuthorization bool
	// Kubeconfig is that of the API server; empty means the in-cluster configuration.
	Kubeconfig string
	// Verbosity is the minimum log verbosity. The KubeVirt object can raise it at run time.
	Verbosity int

	// Listener replaces Address and Port in tests, and Clock the time by which certificates are verified and renewed.
	Listener net.Listener
	Clock    clock.WithTicker
}

// BindFlags adds the options to a flag set.
func (o *Options) BindFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.Address, "listen", "0.0.0.0", "IP address on which virt-api serves")
	fs.IntVar(&o.Port, "port", 8443, "HTTPS port of the API")
	fs.IntVar(&o.ConsoleServerPort, "console-server-port", agentapi.ConsolePort,
		"port on which virt-handler serves requests for subresources")
	fs.StringVar(&o.Namespace, "install-namespace", os.Getenv(namespaceEnv),
		"namespace of the KubeVirt object and of the virt-handler Pods; the default is the environment variable "+
			namespaceEnv)
	fs.StringVar(&o.TrustDirectory, "trust-dir", defaultTrust,
		"directory with the CA certificates, one file for each role")
	fs.StringVar(&o.GuestfsImage, "guestfs-image", "",
		"image of libguestfs-tools, which virtctl guestfs runs; empty if there is none")
	fs.BoolVar(&o.MetricsAuthorization, "metrics-authorization", false,
		"serve the metrics only to clients that may get the URL /metrics")
	fs.IntVar(&o.Verbosity, "v", 0, "minimum log verbosity; "+
		"spec.configuration.developerConfiguration.logVerbosity.virtAPI of the KubeVirt object can raise it")
}

// Validate returns an error for each missing or invalid option.
func (o *Options) Validate() error {
	var errs []error
	if o.Namespace == "" {
		errs = append(errs, fmt.Errorf("the install namespace is not known: set --install-namespace or %s", namespaceEnv))
	}
	if net.ParseIP(o.Address) == nil {
		errs = append(errs, fmt.Errorf("--listen is %q: it must be an IP address", o.Address))
	}
	for flag, port := range map[string]int{"port": o.Port, "console-server-port": o.ConsoleServerPort} {
		if port < 1 || port > 65535 {
			errs = append(errs, fmt.Errorf("--%s is %d: it must be a port from 1 to 65535", flag, port))
		}
	}
	return errors.Join(errs...)
}

// connection has what virt-api needs to connect to other components.
type connection struct {
	own       certificate.Provider
	trust     certificate.Trust
	namespace string
	now       func() time.Time
}

// to returns the configuration of one connection to a component. The node selects the agent, and is ignored for other
// components.
func (c connection) to(component, node string) (config *tls.Config, err error) {
	switch component {
	case profile.API:
		config, err = certificate.APIPeer(c.own, c.trust, c.namespace)
	case profile.Controller:
		config, err = certificate.ControllerClient(c.own, c.trust, c.namespace)
	default:
		config, err = certificate.AgentClient(c.own, c.trust, node)
	}
	if err != nil {
		return nil, err
	}
	config.Time = c.now
	return config, nil
}

// ownProfiles serves profiles of this process to virt-api's Pods.
func ownProfiles(store *clusterconfig.Store, trust certificate.Trust, now func() time.Time) http.Handler {
	verify := func(state *tls.ConnectionState) error {
		bundle, err := trust.Bundle(certificate.APIClient)
		if err != nil {
			return err
		}
		return certificate.VerifyAPI(state, bundle, now())
	}
	return profiler.OnlyAPI(verify, profiler.New(store).Handler())
}
