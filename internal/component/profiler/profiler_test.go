// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package profiler

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// get sends a request to the profiler.
func get(t *testing.T, handler http.Handler, method, path string) (int, []byte) {
	t.Helper()
	recorder := httptest.NewRecorder()
	request := httptest.NewRequest(method, path, http.NoBody)
	request.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
	handler.ServeHTTP(recorder, request)
	return recorder.Code, recorder.Body.Bytes()
}

func dump(t *testing.T, handler http.Handler) map[string][]byte {
	t.Helper()
	code, body := get(t, handler, http.MethodGet, DumpPath)
	result := v1.ProfilerResult{}
	if err := json.Unmarshal(body, &result); code != http.StatusOK || err != nil {
		t.Fatalf("got %d %s", code, body)
	}
	for name, content := range result.PprofData {
		// pprof's format is a compressed message.
		reader, err := gzip.NewReader(bytes.NewReader(content))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if content, err := io.ReadAll(reader); err != nil || len(content) == 0 {
			t.Errorf("%s has %d bytes: %v", name, len(content), err)
		}
	}
	return result.PprofData
}

func TestProfiles(t *testing.T) {
	p := &Profiler{}
	handler := p.Handler()
	for _, path := range Paths() {
		if code, _ := get(t, handler, http.MethodGet, path); code != http.StatusForbidden {
			t.Errorf("%s while disabled: %d", path, code)
		}
	}
	p.Enable(true)
	expect := func(path string, want int) {
		t.Helper()
		if code, body := get(t, handler, http.MethodGet, path); code != want {
			t.Errorf("%s: got %d %s, want %d", path, code, body, want)
		}
	}
	expect(StopPath, http.StatusOK)
	if got := dump(t, handler); len(got) != len(lookups) {
		t.Errorf("without a CPU profile: %d profiles", len(got))
	}
	expect(StartPath, http.StatusOK)
	expect(StartPath, http.StatusOK) // starts again
	if got := dump(t, handler); len(got) != len(lookups) {
		t.Errorf("while a CPU profile is taken: %d profiles", len(got))
	}
	expect(StopPath, http.StatusOK)
	if got := dump(t, handler); len(got) != len(lookups)+1 || len(got[cpuProfile]) == 0 {
		t.Errorf("with a CPU profile: %d profiles", len(got))
	}
	if code, _ := get(t, handler, http.MethodPost, StartPath); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code)
	}
	// Disabling it ends the profile, so that another can be taken.
	expect(StartPath, http.StatusOK)
	p.Enable(false)
	p.Enable(true)
	if got := dump(t, handler); len(got) != len(lookups) {
		t.Errorf("after it was disabled: %d profiles", len(got))
	}
}

func TestALongProfileEnds(t *testing.T) {
	p := &Profiler{}
	p.Enable(true)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.limit.Reset(0)
	running := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.running
	}
	for deadline := time.Now().Add(30 * time.Second); running(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the profile has not ended")
		}
	}
	if got := dump(t, p.Handler()); len(got[cpuProfile]) == 0 {
		t.Error("the profile is lost")
	}
}

func TestBounded(t *testing.T) {
	b := &bounded{left: 3}
	for range 2 {
		if n, err := b.Write([]byte("ab")); n != 2 || err != nil {
			t.Errorf("got %d %v", n, err)
		}
	}
	if b.String() != "ab" || !b.cut {
		t.Errorf("got %q, cut %t", b.String(), b.cut)
	}
}

func TestOnlyAPI(t *testing.T) {
	p := &Profiler{}
	p.Enable(true)
	refuse := func(*tls.ConnectionState) error { return errors.New("no certificate") }
	if code, _ := get(t, OnlyAPI(refuse, p.Handler()), http.MethodGet, DumpPath); code != http.StatusForbidden {
		t.Errorf("refused: %d", code)
	}
	accept := func(*tls.ConnectionState) error { return nil }
	dump(t, OnlyAPI(accept, p.Handler()))
	recorder := httptest.NewRecorder()
	OnlyAPI(accept, p.Handler()).ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, DumpPath, http.NoBody))
	if recorder.Code != http.StatusForbidden {
		t.Errorf("without a certificate: %d", recorder.Code)
	}
}
