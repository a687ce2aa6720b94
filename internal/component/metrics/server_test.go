// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/vireo-project/vireo/internal/limits"
)

// broken is a collector with a good metric and one that cannot be collected.
type broken struct{}

func (broken) Describe(chan<- *prometheus.Desc) {}

func (broken) Collect(to chan<- prometheus.Metric) {
	to <- Gauge(Describe("good", "h"), 1)
	to <- prometheus.NewInvalidMetric(Describe("bad", "h"), errors.New("no cache"))
}

func TestServer(t *testing.T) {
	mgr, err := ctrl.NewManager(&rest.Config{Host: "127.0.0.1:1"},
		ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	if err := AddServer(mgr, Options{
		Address: address, Collectors: []prometheus.Collector{broken{}},
		Health: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "healthy") }),
	}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()

	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		ForceAttemptHTTP2: true}}
	get := func(path string) (int, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		if response.ProtoMajor != 1 {
			t.Errorf("%s is served over HTTP/%d", path, response.ProtoMajor)
		}
		return response.StatusCode, string(body)
	}
	// A metric that cannot be collected does not remove the others.
	if code, body := get(Path); code != http.StatusOK || !strings.Contains(body, "\nkubevirt_good 1\n") ||
		!strings.Contains(body, "\ngo_goroutines ") {
		t.Errorf("got %d %.500s", code, body)
	}
	if code, body := get("/healthz"); code != http.StatusOK || body != "healthy" {
		t.Errorf("got %d %s", code, body)
	}
	if code, _ := get("/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("got %d", code)
	}
	client.CloseIdleConnections()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestStatus(t *testing.T) {
	leading := make(chan struct{})
	isClosed := Closed(leading)
	if isClosed() {
		t.Error("leads before it was elected")
	}
	close(leading)
	if !isClosed() {
		t.Error("does not lead after it was elected")
	}
}

// A request in service keeps its connection while others connect, as long as there are at most maxProtected.
func TestRequestsInServiceKeepTheirConnections(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(limits.Protected(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		entered <- struct{}{}
		<-leave
		_, _ = io.WriteString(w, "metrics")
	}), maxProtected))
	go func() { _ = server.Serve(limits.Connections(listener, maxConnections)) }()
	t.Cleanup(func() { _ = server.Close() })

	failed := make(chan error, 2*maxProtected)
	for range 2 * maxProtected {
		go func() {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String(), nil)
			if err != nil {
				failed <- err
				return
			}
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			response, err := client.Do(request)
			if err == nil {
				_ = response.Body.Close()
			}
			failed <- err
		}()
		<-entered
	}
	var later []net.Conn
	for range 10 * maxConnections {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		later = append(later, conn)
	}
	// Each of them but the last ones was closed for a later one, so the server has accepted all.
	for _, conn := range later[:len(later)-maxProtected] {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a connection without a request got a response")
		}
	}
	for range maxProtected {
		if err := <-failed; err == nil {
			t.Error("a request was answered before the handler has returned")
		}
	}
	close(leave)
	for range maxProtected {
		if err := <-failed; err != nil {
			t.Errorf("a protected request has failed: %v", err)
		}
	}
}

// What was gathered once is encoded once, and compressed once, however many requests there are and however many of them
// are canceled.
func TestPageIsEncodedOnce(t *testing.T) {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubevirt_good", Help: "h"})
	registry := prometheus.NewRegistry()
	registry.MustRegister(gauge)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	p := &page{from: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return families, nil })}
	get := func(ctx context.Context, encoding string) *bytes.Buffer {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, Path, nil)
		r.Header.Set("Accept-Encoding", encoding)
		p.ServeHTTP(w, r)
		return w.Body
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	get(t.Context(), "gzip")
	plain, zipped := &p.current.plain[0], &p.current.zipped[0]
	var wait sync.WaitGroup
	for i := range 100 {
		wait.Go(func() { get([]context.Context{t.Context(), canceled}[i%2], []string{"", "gzip"}[i/50]) })
	}
	wait.Wait()
	if &p.current.plain[0] != plain || &p.current.zipped[0] != zipped {
		t.Error("encoded more than once")
	}

	reader, err := gzip.NewReader(get(t.Context(), "gzip, deflate"))
	if err != nil {
		t.Fatal(err)
	}
	unzipped, err := io.ReadAll(reader)
	if err != nil || string(unzipped) != string(p.current.plain) ||
		!strings.Contains(string(unzipped), "\nkubevirt_good 0\n") {
		t.Errorf("%q (%v)", unzipped, err)
	}

	gauge.Set(2)
	if families, err = registry.Gather(); err != nil {
		t.Fatal(err)
	}
	if body := get(t.Context(), "").String(); !strings.Contains(body, "\nkubevirt_good 2\n") {
		t.Errorf("served what was gathered before: %q", body)
	}
}

// slowClient is a client that takes the header of a page, and its body when it continues.
type slowClient struct {
	httptest.ResponseRecorder
	started, proceed chan struct{}
}

func (s *slowClient) Write(text []byte) (int, error) {
	close(s.started)
	<-s.proceed
	return s.ResponseRecorder.Write(text)
}

// Clients that receive pages slowly keep two of them in memory, and not each that was current meanwhile.
func TestSlowClientsKeepTwoPages(t *testing.T) {
	value := 0.0
	p := &page{from: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubevirt_good", Help: "h"})
		registry := prometheus.NewRegistry()
		registry.MustRegister(gauge)
		value++
		gauge.Set(value)
		return registry.Gather()
	})}
	var clients []*slowClient
	var wait sync.WaitGroup
	for range 10 {
		client := &slowClient{*httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
		clients = append(clients, client)
		wait.Go(func() { p.ServeHTTP(client, httptest.NewRequest(http.MethodGet, Path, nil)) })
		<-client.started
	}
	for _, client := range clients {
		close(client.proceed)
	}
	wait.Wait()
	for i, client := range clients {
		want := "\nkubevirt_good 2\n"
		if i == 0 {
			want = "\nkubevirt_good 1\n"
		}
		if body := client.Body.String(); !strings.Contains(body, want) {
			t.Errorf("client %d got %q", i, body)
		}
	}
	// As soon as they are gone, the page is replaced again.
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path, nil))
	if body := w.Body.String(); !strings.Contains(body, "\nkubevirt_good 11\n") || p.old != nil {
		t.Errorf("got %q", body)
	}
}
