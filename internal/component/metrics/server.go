// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	runtimemetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/vireo-project/vireo/internal/component/health"
	"github.com/vireo-project/vireo/internal/component/profiler"
	"github.com/vireo-project/vireo/internal/limits"
)

const (
	// maxConnections limits the open connections of the server, to which every Pod of the cluster can connect unless a
	// network policy forbids it. Each Prometheus keeps one open.
	maxConnections = 64
	// maxProtected is how many requests in service keep their connections when there are too many. Half of the connections
	// stay free for new ones, so that slow clients cannot keep out others.
	maxProtected = maxConnections / 2
	// requestTimeout bounds a request with its response. Prometheus waits 10 seconds by default.
	requestTimeout = 30 * time.Second
	// idleTimeout is longer than the usual interval of scrapes, so that Prometheus keeps its connection.
	idleTimeout = 2 * time.Minute
	// maxHeader bounds the headers of a request, in bytes.
	maxHeader = 16 << 10
	// shutdownTimeout bounds how long shutdown waits for responses in flight.
	shutdownTimeout = 5 * time.Second
)

// Options configure what a component serves.
type Options struct {
	// Address is where the server listens.
	Address string
	// TLS sets the certificate. Without it, the certificate is self-signed.
	TLS func(*tls.Config)
	// RestrictTLS sets the versions and ciphers of each handshake. Without it, they are Go's, from TLS 1.2.
	RestrictTLS func(*tls.Config)
	// Collectors are the component's own metrics.
	Collectors []prometheus.Collector
	// Library gathers the metrics of the library that the component uses. Nil means controller-runtime.
	Library prometheus.Gatherer
	// Queues are KubeVirt's names of work queues, by the names of their controllers.
	Queues map[string]string
	// Health serves health.Path, always without authentication.
	Health http.Handler
	// Profiles serves the paths of profiler.Paths, and admits clients by their certificates. Nil serves none.
	Profiles http.Handler
	// Authorize makes the server serve the metrics only to clients that may get the URL Path.
	Authorize bool
}

// AddServer adds a server of a component's metrics to a manager. It replaces the server of controller-runtime, which
// has no limit of connections: the manager must have the metrics' BindAddress "0".
func AddServer(mgr ctrl.Manager, o Options) error {
	handler, err := Handler(o)
	if err != nil {
		return err
	}
	if o.Authorize {
		if handler, err = authorized(mgr.GetConfig(), mgr.GetHTTPClient(), handler); err != nil {
			return err
		}
	}
	server, err := listen(handler, o)
	if err != nil {
		return err
	}
	if err := mgr.Add(server); err != nil {
		_ = server.Listener.Close()
		return err
	}
	return nil
}

// NewServer returns a server of the metrics of a component that has no manager. It listens already. Options.Authorize
// is not supported.
func NewServer(o Options) (*manager.Server, error) {
	handler, err := Handler(o)
	if err != nil {
		return nil, err
	}
	return listen(handler, o)
}

// listen returns a server that listens already.
func listen(handler http.Handler, o Options) (*manager.Server, error) {
	config, err := o.tls()
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle(Path, handler)
	mux.Handle(health.Path, o.Health)
	profiler.Register(mux, o.Profiles)
	if o.Profiles != nil {
		// The handler of Profiles verifies the certificate. Prometheus has none.
		config.ClientAuth = tls.RequestClientCert
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for requests of the metrics: %w", err)
	}
	return &manager.Server{
		Name: "metrics", Server: newServer(mux),
		Listener:        tls.NewListener(limits.Connections(listener, maxConnections), config),
		ShutdownTimeout: ptr.To(shutdownTimeout),
	}, nil
}

// Handler returns the handler of a component's metrics.
func Handler(o Options) (http.Handler, error) {
	gatherer, err := Gatherer(o)
	if err != nil {
		return nil, err
	}
	// Where clients must authorize, only those that may read the metrics come so far.
	return limits.Protected(&page{from: &shared{from: gatherer, clock: clock.RealClock{}}}, maxProtected), nil
}

// Gatherer returns the metrics of a component: its own, those of all components, and those of its library.
func Gatherer(o Options) (prometheus.Gatherer, error) {
	own := prometheus.NewRegistry()
	for _, collector := range append(clientCollectors(), o.Collectors...) {
		if err := own.Register(collector); err != nil {
			return nil, fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	all := prometheus.Gatherers{own, queues{from: runtimemetrics.Registry, names: o.Queues, only: o.Library != nil}}
	if o.Library != nil {
		all = append(all, o.Library)
	}
	return all, nil
}

// tls returns the server's configuration, without HTTP/2, whose streams would evade the limit of connections.
func (o *Options) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if o.RestrictTLS != nil {
		defer o.RestrictTLS(config)
	}
	if o.TLS != nil {
		o.TLS(config)
		return config, nil
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate for the metrics: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("cannot use the certificate for the metrics: %w", err)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}

func newServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadTimeout: requestTimeout, ReadHeaderTimeout: requestTimeout, WriteTimeout: requestTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader, ConnContext: limits.ConnContext,
	}
}

// page serves what was gathered in Prometheus' text format. It is encoded once, however many requests there are: no one
// has to authenticate, and encoding takes longer than gathering.
//
// A client may take its time to receive a page. While one sends an old page, the current one is not replaced if it is
// in use, too: with many slow clients there would otherwise be many pages in memory.
type page struct {
	from prometheus.Gatherer

	mu           sync.Mutex
	current, old *version
}

// version is a page with what was gathered at a time.
type version struct {
	families      []*dto.MetricFamily
	plain, zipped []byte
	// users is how many responses send it.
	users int
}

// ServeHTTP implements http.Handler. If some metrics could not be gathered, it serves the others: what a guest or a
// tenant reports must not remove the metrics of others.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	families, err := p.from.Gather()
	if err != nil {
		log.Log.WithName("metrics").V(1).Info("Cannot serve all metrics", "error", err.Error())
		if len(families) == 0 {
			http.Error(w, "no metric could be gathered", http.StatusInternalServerError)
			return
		}
	}
	zip := strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	w.Header().Set("Vary", "Accept-Encoding")
	if zip {
		w.Header().Set("Content-Encoding", "gzip")
	}
	used, text := p.encoded(families, zip)
	defer p.release(used)
	_, _ = w.Write(text)
}

// encoded returns the page as it is to be sent, and the version of it that the caller releases afterwards.
func (p *page) encoded(families []*dto.MetricFamily, zip bool) (*version, []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil || !slices.Equal(p.current.families, families) {
		p.replace(families)
	}
	used := p.current
	used.users++
	if !zip {
		return used, used.plain
	}
	if used.zipped == nil {
		used.zipped = compress(used.plain)
	}
	return used, used.zipped
}

// replace replaces the current version, unless it and an older one are in use.
func (p *page) replace(families []*dto.MetricFamily) {
	if p.current != nil && p.current.users > 0 {
		if p.old != nil {
			return
		}
		p.old = p.current
		p.old.families = nil
	}
	p.current = &version{families: families, plain: encode(families)}
}

func (p *page) release(used *version) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if used.users--; used.users == 0 && used == p.old {
		p.old = nil
	}
}

func encode(families []*dto.MetricFamily) []byte {
	var out bytes.Buffer
	for _, family := range families {
		start := out.Len()
		if _, err := expfmt.MetricFamilyToText(&out, family); err != nil {
			out.Truncate(start)
		}
	}
	return out.Bytes()
}

func compress(plain []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(plain) // writes to a buffer do not fail
	_ = w.Close()
	return out.Bytes()
}
