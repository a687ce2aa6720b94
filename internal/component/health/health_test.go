// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package health

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/version"
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
	unreachable := &Check{APIServer: &server{err: errors.New("dial tcp 10.96.0.1:443: no route")}, ConfigVersion: func() string { return "17" }}
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
	if c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path, nil).WithContext(ctx)); w.Code != http.StatusInternalServerError {
		t.Errorf("the canceled check got %d", w.Code)
	}
	close(api.unblock)
	for range 2 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("got %d", code)
		}
	}
}
