// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vireo-project/vireo/internal/limits"
)

// path is the only one that API servers use in these tests.
const path = "/secret/hook"

// serve serves a webhook until the test ends, with a read timeout. It returns its address.
func serve(t *testing.T, hook http.Handler, timeout time.Duration) string {
	t.Helper()
	s := New(Options{Webhook: func(p string) (string, bool) { return "hook", p == path }})
	s.Register("/hook", hook)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(s.handler())
	server.ReadTimeout = timeout
	go func() { _ = server.Serve(limits.Connections(listener, maxConnections)) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

// dial connects from an address of the host.
func dial(t *testing.T, from, to string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func post(path string, length int) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path,
		length)
}

// answer reads a response and returns its code, and whether the connection is closed after it.
func answer(t *testing.T, conn net.Conn) (code int, closed bool) {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode, response.Close
}

func TestUnknownPathsAreRefusedBeforeTheBody(t *testing.T) {
	called := false
	address := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true }), readTimeout)
	for _, wrong := range []string{"/", "/hook", "/secret", "/secret/hook/", "/secret//hook", "/other/hook"} {
		conn := dial(t, "127.0.0.1", address)
		if _, err := io.WriteString(conn, post(wrong, maxBody)); err != nil { // and no body
			t.Fatal(err)
		}
		if code, closed := answer(t, conn); code != http.StatusNotFound || !closed {
			t.Errorf("%s: got %d, closed %v", wrong, code, closed)
		}
	}
	if called {
		t.Error("the webhook was called")
	}
	conn := dial(t, "127.0.0.1", address)
	if _, err := io.WriteString(conn, post(path, 0)); err != nil {
		t.Fatal(err)
	}
	if code, closed := answer(t, conn); code != http.StatusOK || closed || !called {
		t.Errorf("got %d, closed %v, called %v", code, closed, called)
	}
}

// Clients that send large bodies and do not end them, and that know the path, neither use up the memory nor keep out
// others.
func TestUnfinishedBodiesAreLimited(t *testing.T) {
	address := serve(t, &admission.Webhook{Handler: admission.HandlerFunc(
		func(context.Context, admission.Request) admission.Response {
			return admission.Allowed("")
		})}, time.Hour)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	part := []byte(strings.Repeat(" ", 64<<10))
	const clients = 200
	var refused atomic.Int64
	var group sync.WaitGroup
	for i := range clients {
		conn := dial(t, fmt.Sprintf("127.0.0.%d", 2+i%2), address)
		group.Go(func() {
			_, err := io.WriteString(conn, post(path, maxBody))
			for sent := 0; err == nil && sent < maxBody-len(part); sent += len(part) {
				_, err = conn.Write(part)
			}
			if err != nil {
				refused.Add(1) // the server does not read what it refuses
			}
		})
	}
	group.Wait()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 2*maxBodies {
		t.Errorf("%d requests take %d MiB", clients, grown>>20)
	} else {
		t.Logf("%d requests, %d of them refused while they were sent, take %d MiB", clients, refused.Load(), grown>>20)
	}
	conn := dial(t, "127.0.0.1", address)
	body := `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1"}}`
	if _, err := io.WriteString(conn, post(path, len(body))+body); err != nil {
		t.Fatal(err)
	}
	if code, _ := answer(t, conn); code != http.StatusOK {
		t.Errorf("another client gets %d", code)
	}
}

func TestABodyThatStopsIsNotWaitedFor(t *testing.T) {
	if limits := newServer(nil); limits.ReadTimeout != readTimeout || limits.ReadHeaderTimeout != headerTimeout {
		t.Errorf("requests may take %s, their headers %s", limits.ReadTimeout, limits.ReadHeaderTimeout)
	}
	failed := make(chan error, 1)
	address := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		failed <- err
	}), 50*time.Millisecond)
	conn := dial(t, "127.0.0.1", address)
	if _, err := io.WriteString(conn, post(path, 10)+"12345"); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil {
		t.Error("the body was read")
	}
}

// Start serves with TLS and HTTP/1.1 only.
func TestStart(t *testing.T) {
	crt, key, err := certutil.GenerateSelfSignedCertKey("localhost", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		t.Fatal(err)
	}
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	s := New(Options{
		Address: address, Webhook: func(p string) (string, bool) { return "hook", p == path },
		TLS: []func(*tls.Config){func(config *tls.Config) { config.Certificates = []tls.Certificate{pair} }},
	})
	s.Register("/hook", http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }))
	if err := s.StartedChecker()(nil); err == nil {
		t.Error("it has started before Start")
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	for s.StartedChecker()(nil) != nil {
		select {
		case err := <-done:
			t.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		ForceAttemptHTTP2: true}}
	response, err := client.Get("https://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if response.ProtoMajor != 1 || string(body) != "/hook" {
		t.Errorf("got %s, %s", response.Proto, body)
	}
	client.CloseIdleConnections()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
