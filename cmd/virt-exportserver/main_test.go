// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/exporter/server"
	"github.com/vireo-project/vireo/test/pki"
)

// timeout is long enough for a loaded machine.
const timeout = time.Minute

// export is a server of one disk, with the token "token".
type export struct {
	t       *testing.T
	address string
	client  *http.Client
	volume  content.Volume
}

func start(t *testing.T, size int) *export {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "disk.img"), make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	e := &export{t: t, volume: content.Volume{Name: "root", Disk: true}}
	exporter, err := server.New(server.Options{
		Content: func() (*content.Content, error) { return &content.Content{Volumes: []content.Volume{e.volume}}, nil },
		Token:   func() (string, error) { return "token", nil },
		Mount:   func(content.Volume) string { return dir },
		Log:     logr.Discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	authority := pki.New(t)
	http1 := exporter.HTTP()
	http1.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12,
		Certificates: []tls.Certificate{authority.Issue("export", x509.ExtKeyUsageServerAuth)}}
	http1.ReadHeaderTimeout = 2 * timeout // so that only the limit closes silent connections
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.address = listener.Addr().String()
	e.client = &http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authority.Pool(), ServerName: "export"},
	}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, http1, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return e
}

// download starts a download, and returns its body.
func (e *export) download() io.Reader {
	e.t.Helper()
	request, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, "https://"+e.address+e.volume.RawPath(), nil)
	if err != nil {
		e.t.Fatal(err)
	}
	request.Header.Set(content.TokenHeader, "token")
	response, err := e.client.Do(request)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		e.t.Fatalf("got %d", response.StatusCode)
	}
	return response.Body
}

func TestNewConnectionsCloseIdleOnesAndNoDownloads(t *testing.T) {
	const size = 64 << 20 // more than the buffers of a connection
	e := start(t, size)
	download := e.download()
	var others []net.Conn
	for range maxConnections + 8 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", e.address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		others = append(others, conn)
	}
	for _, conn := range others[:8] {
		_ = conn.SetReadDeadline(time.Now().Add(timeout))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a connection beyond the limit stays open")
		}
	}
	if n, err := io.Copy(io.Discard, download); err != nil || n != size {
		t.Errorf("the download was cut off after %d bytes: %v", n, err)
	}
}

func TestPullReportsWhatWasRead(t *testing.T) {
	exporter, err := server.New(server.Options{
		Content: func() (*content.Content, error) {
			return &content.Content{Backup: &content.Backup{Volumes: []string{"root"}, Client: "agent"}}, nil
		},
		Token: func() (string, error) { return "token", nil }, Log: logr.Discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	o := options{address: "127.0.0.1", report: filepath.Join(t.TempDir(), "termination-log")}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := o.pull(ctx, exporter, &server.Certificate{}); err != nil {
		t.Fatal(err)
	}
	message, err := os.ReadFile(o.report)
	if err != nil {
		t.Fatal(err)
	}
	if report, err := content.ParseReport(string(message)); err != nil || report.Volumes != 1 || report.Unread != 1 {
		t.Errorf("got %s, %v", message, err)
	}
}
