// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/vireo-project/vireo/internal/component/connectionlimit"
)

// broken is a collector with a good metric and one that cannot be collected.
type broken struct{}

func (broken) Describe(chan<- *prometheus.Desc) {}

func (broken) Collect(to chan<- prometheus.Metric) {
	to <- Gauge(Describe("good", "h"), 1)
	to <- prometheus.NewInvalidMetric(Describe("bad", "h"), errors.New("no cache"))
}

func TestServer(t *testing.T) {
	mgr, err := ctrl.NewManager(&rest.Config{Host: "127.0.0.1:1"}, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
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

	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}}
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
	if code, body := get(Path); code != http.StatusOK || !strings.Contains(body, "\nkubevirt_good 1\n") || !strings.Contains(body, "\ngo_goroutines ") {
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
	server := newServer(connectionlimit.Protected(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		entered <- struct{}{}
		<-leave
		_, _ = io.WriteString(w, "metrics")
	}), maxProtected))
	go func() { _ = server.Serve(connectionlimit.New(listener, maxConnections)) }()
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
