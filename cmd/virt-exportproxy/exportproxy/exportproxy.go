// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package exportproxy assembles virt-exportproxy: the proxy of exports, its certificate and its logger.
package exportproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/health"
	"github.com/vireo-project/vireo/internal/component/livelog"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/exporter/proxy"
	"github.com/vireo-project/vireo/internal/limits"
)

const (
	// namespaceEnv is the environment variable with the install namespace, which the Deployment sets.
	namespaceEnv = "POD_NAMESPACE"
	// defaultTrust is where the Deployment mounts the ConfigMap of CA certificates.
	defaultTrust = "/etc/virt-exportproxy/trust"
	// maxConnections limits the open connections, since anyone can connect. More than the proxy's downloads, whose
	// connections are not closed for new ones.
	maxConnections = 1024
	// keepAlive is the interval of TCP keep-alive probes, which detect dead clients.
	keepAlive = 15 * time.Second
	// healthPath is the path of the readiness probe. KubeVirt's.
	healthPath = "/healthz"
	// drain is how long downloads may go on after SIGTERM. The Pod's grace period is longer.
	drain = 50 * time.Second
)

// Options are virt-exportproxy's flags. Names and defaults are KubeVirt's where KubeVirt has them.
type Options struct {
	// Address and Port are where virt-exportproxy listens.
	Address string
	Port    int
	// Namespace is the install namespace.
	Namespace string
	// TrustDirectory contains the CA certificates, one file for each role.
	TrustDirectory string
	// MetricsPort is where the metrics are served, at the same address. It is not for clients from outside. 0 serves none.
	MetricsPort int
	// Verbosity is the log verbosity.
	Verbosity int

	// Listener replaces Address and Port in tests, Clock the time by which certificates are verified and renewed, and
	// Dial the connections to exporters.
	Listener net.Listener
	Clock    clock.WithTicker
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
}

// BindFlags adds the options to a flag set.
func (o *Options) BindFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.Address, "listen", "0.0.0.0", "IP address on which virt-exportproxy serves")
	fs.IntVar(&o.Port, "port", content.Port, "HTTPS port")
	fs.StringVar(&o.Namespace, "install-namespace", os.Getenv(namespaceEnv),
		"namespace of the KubeVirt object and of the components; the default is the environment variable "+namespaceEnv)
	fs.StringVar(&o.TrustDirectory, "trust-dir", defaultTrust,
		"directory with the CA certificates, one file for each role")
	fs.IntVar(&o.MetricsPort, "metrics-port", 0,
		"HTTPS port of the metrics, which is not for clients from outside; 0 serves none")
	fs.IntVar(&o.Verbosity, "v", 0, "log verbosity")
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
	if o.Port < 1 || o.Port > 65535 {
		errs = append(errs, fmt.Errorf("--port is %d: it must be a port from 1 to 65535", o.Port))
	}
	if o.MetricsPort < 0 || o.MetricsPort > 65535 || o.MetricsPort != 0 && o.MetricsPort == o.Port {
		errs = append(errs, fmt.Errorf("--metrics-port is %d: it must be a port from 1 to 65535 other than --port, or 0",
			o.MetricsPort))
	}
	return errors.Join(errs...)
}

// Run runs virt-exportproxy until the context ends.
func Run(ctx context.Context, config *rest.Config, o *Options, l *livelog.Log) error {
	if err := o.Validate(); err != nil {
		return err
	}
	ctx = ctrl.LoggerInto(ctx, l.Logger)
	metrics.CountRequests(config)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, exportv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	reader, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("cannot make a client: %w", err)
	}
	store := clusterconfig.NewStore()
	if err := store.Load(ctx, reader, o.Namespace); err != nil {
		return err
	}
	objects, err := newCache(config, scheme, o.Namespace)
	if err != nil {
		return err
	}
	trust := certificate.Trust(o.TrustDirectory)
	serving := certificate.NewSource(config, certificate.ExportProxyServing,
		certificate.ExportProxySubject(o.Namespace), trust)
	serving.Lifetimes = store.Certificates
	if o.Clock != nil {
		serving.Clock = o.Clock
	}
	server := newServer(proxy.New(proxy.Options{Exports: objects, Dial: o.Dial, Log: l.Logger,
		TLS: o.toExporters(trust)}), serving, objects)
	store.RestrictTLS(server.TLSConfig)
	run := []func(context.Context) error{
		objects.Start, store.Follow(objects, o.Namespace).Start, serving.Start,
		func(ctx context.Context) error { return serve(ctx, server, o) },
	}
	if o.MetricsPort != 0 {
		observed, err := newMetricsServer(config, serving, store, o)
		if err != nil {
			return err
		}
		run = append(run, observed.Start)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, start := range run {
		group.Go(func() error { return start(ctx) })
	}
	l.Info("Starting virt-exportproxy", "namespace", o.Namespace, "port", o.Port)
	return group.Wait()
}

// toExporters returns the function that returns the configuration of a connection to an exporter.
func (o *Options) toExporters(trust certificate.Trust) func(serverName string) (*tls.Config, error) {
	return func(serverName string) (*tls.Config, error) {
		config, err := certificate.ExporterClient(trust, serverName)
		if err == nil && o.Clock != nil {
			config.Time = o.Clock.Now
		}
		return config, err
	}
}

// newMetricsServer returns the server of the metrics and of the health check. The port of the proxy is for clients from
// outside, who must not see them.
func newMetricsServer(
	config *rest.Config, serving certificate.Provider, store *clusterconfig.Store, o *Options,
) (*manager.Server, error) {
	api, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client: %w", err)
	}
	return metrics.NewServer(metrics.Options{
		Address: net.JoinHostPort(o.Address, strconv.Itoa(o.MetricsPort)), RestrictTLS: store.RestrictTLS,
		TLS:    func(c *tls.Config) { c.GetCertificate = certificateOf(serving) },
		Health: &health.Check{APIServer: api, ConfigVersion: store.Version},
	})
}

// newCache returns a cache of exports, of which only the phase is kept, and of the KubeVirt object.
func newCache(config *rest.Config, scheme *runtime.Scheme, namespace string) (cache.Cache, error) {
	objects, err := cache.New(config, cache.Options{
		Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1.KubeVirt{}:                   {Namespaces: map[string]cache.Config{namespace: {}}},
			&exportv1.VirtualMachineExport{}: {Transform: onlyPhase},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make a cache: %w", err)
	}
	return objects, nil
}

func onlyPhase(o any) (any, error) {
	of, ok := o.(*exportv1.VirtualMachineExport)
	if !ok {
		return o, nil
	}
	kept := &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{
		Namespace: of.Namespace, Name: of.Name, UID: of.UID, ResourceVersion: of.ResourceVersion,
		DeletionTimestamp: of.DeletionTimestamp,
	}}
	if of.Status != nil {
		kept.Status = &exportv1.VirtualMachineExportStatus{Phase: of.Status.Phase}
	}
	return kept, nil
}

// newServer returns the server of a proxy. Handshakes fail while there is no certificate.
func newServer(p *proxy.Proxy, serving certificate.Provider, objects cache.Cache) *http.Server {
	server := p.HTTP()
	server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: certificateOf(serving)}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != healthPath {
			p.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if !objects.WaitForCacheSync(ctx) {
			http.Error(w, "the exports are not known yet", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok"))
	})
	return server
}

// certificateOf returns a function that returns the certificate of the server now.
func certificateOf(serving certificate.Provider) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if pair := serving.Current(); pair != nil {
			return pair, nil
		}
		return nil, errors.New("there is no certificate yet: virt-controller has not signed one")
	}
}

// serve serves until the context ends, and then as long as downloads go on, up to drain.
func serve(ctx context.Context, server *http.Server, o *Options) error {
	listener := o.Listener
	if listener == nil {
		config := net.ListenConfig{KeepAlive: keepAlive}
		var err error
		if listener, err = config.Listen(ctx, "tcp", net.JoinHostPort(o.Address, strconv.Itoa(o.Port))); err != nil {
			return err
		}
	}
	done := make(chan error, 1)
	go func() {
		<-ctx.Done()
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
		defer cancel()
		err := server.Shutdown(stopCtx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = server.Close()
		}
		done <- err
	}()
	if err := server.ServeTLS(limits.Connections(listener, maxConnections), "", ""); !errors.Is(err,
		http.ErrServerClosed) {
		return err
	}
	return <-done
}
