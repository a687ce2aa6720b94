// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package health

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/vireo-project/vireo/internal/limits"
)

// server is an API server that responds, or fails with err.
type server struct {
	err      error
	requests int
}

func (s *server) ServerVersion() (*version.Info, error) {
	s.requests++
	return &version.Info{GitVersion: "v1.36.0"}, s.err
}

func get(c *Check) (int, string) {
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path, nil))
	return w.Code, strings.Join(strings.Fields(w.Body.String()), "")
}

func TestFormatIsKubeVirts(t *testing.T) {
	api := &server{}
	c := &Check{APIServer: api, ConfigVersion: func() string { return "17" }}
	for range 3 {
		code, body := get(c)
		if code != http.StatusOK || !strings.HasPrefix(body, `{"apiserver":{"connectivity":"ok","version":{`) || !strings.HasSuffix(body, `"config-resource-version":"17"}`) {
			t.Fatalf("got %d %s", code, body)
		}
	}
	if api.requests == 0 || api.requests == 3 {
		t.Errorf("the API server got %d requests for 3 checks", api.requests)
	}
	unreachable := &Check{APIServer: &server{err: errors.New("dial tcp 10.96.0.1:443: no route")},
		ConfigVersion: func() string { return "17" }}
	want := `{"apiserver":{"connectivity":"failed","error":"theAPIservercannotbereached"},"config-resource-version":"17"}`
	if code, body := get(unreachable); code != http.StatusInternalServerError || body != want {
		t.Errorf("got %d %s", code, body)
	}
}

// slow is an API server that sends on requested for each request, and responds when unblock is closed.
type slow struct{ requested, unblock chan struct{} }

func (s slow) ServerVersion() (*version.Info, error) {
	s.requested <- struct{}{}
	<-s.unblock
	return &version.Info{GitVersion: "v1.36.0"}, nil
}

func TestCancelledCheckOfASlowAPIServer(t *testing.T) {
	api := slow{requested: make(chan struct{}), unblock: make(chan struct{})}
	c := &Check{APIServer: api, ConfigVersion: func() string { return "17" }}
	codes := make(chan int)
	for range 2 {
		go func() {
			code, _ := get(c)
			codes <- code
		}()
	}
	<-api.requested
	// A third check is canceled. All three share one request to the API server.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	if c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path,
		nil).WithContext(ctx)); w.Code != http.StatusInternalServerError {
		t.Errorf("the canceled check got %d", w.Code)
	}
	close(api.unblock)
	for range 2 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("got %d", code)
		}
	}
}

// serveProbes serves the kubelet's probes and returns the address.
func serveProbes(t *testing.T, server *http.Server, limit int) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(limits.Connections(listener, limit)) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// probe sends one request on a new connection, as the kubelet does, and returns the response code.
func probe(t *testing.T, address, path string) (int, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func ok(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }

// ended waits until the server has closed a connection.
func ended(conn net.Conn) error {
	_, err := io.Copy(io.Discard, conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

func TestSilentConnectionsDoNotBlockProbes(t *testing.T) {
	const limit = 4
	address := serveProbes(t, probeServer(http.HandlerFunc(ok)), limit)
	var silent []net.Conn
	for range 3 * limit {
		conn := dial(t, address)
		// Slowloris: a request that never ends.
		if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: "); err != nil {
			t.Fatal(err)
		}
		silent = append(silent, conn)
	}
	for range limit {
		if code, err := probe(t, address, Path); err != nil || code != http.StatusOK {
			t.Fatalf("the kubelet got %d, %v", code, err)
		}
	}
	// The oldest are closed long before probeTimeout.
	for _, conn := range silent[:2*limit] {
		_ = conn.SetReadDeadline(time.Now().Add(probeTimeout / 2))
		if err := ended(conn); err != nil {
			t.Fatal("a connection beyond the limit stays open")
		}
	}
}

func TestIncompleteRequestTimesOut(t *testing.T) {
	server := probeServer(http.HandlerFunc(ok))
	if server.ReadHeaderTimeout != probeTimeout {
		t.Errorf("a request may take %v", server.ReadHeaderTimeout)
	}
	server.ReadHeaderTimeout, server.ReadTimeout = time.Millisecond, time.Millisecond
	conn := dial(t, serveProbes(t, server, 4))
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := ended(conn); err != nil {
		t.Error(err)
	}
}

func TestConnectionIsClosedAfterTheResponse(t *testing.T) {
	conn := dial(t, serveProbes(t, probeServer(http.HandlerFunc(ok)), 4))
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := io.ReadAll(conn)
	if err != nil || len(response) == 0 {
		t.Errorf("got %q, %v", response, err)
	}
}

func TestManagersChecksAreServed(t *testing.T) {
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
	if mgr, err = WithProbes(mgr, address); err != nil {
		t.Fatal(err)
	}
	notYet := func(*http.Request) error { return errors.New("no certificate yet") }
	for _, err := range []error{mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("certificate", notYet)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := mgr.AddReadyzCheck("ping", healthz.Ping); err == nil {
		t.Error("a check replaced another")
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	// A connection waits in the listener's backlog until the server has started, which does not wait for caches.
	for path, want := range map[string]int{
		Path: http.StatusOK, Path + "/ping": http.StatusOK, ReadyPath: http.StatusInternalServerError,
		ReadyPath + "/ping": http.StatusOK, "/": http.StatusNotFound,
	} {
		if code, err := probe(t, address, path); err != nil || code != want {
			t.Errorf("%s: got %d, %v, not %d", path, code, err, want)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
