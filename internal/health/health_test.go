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

// server is an API server that is there or not.
type server struct {
	err   error
	asked int
}

func (s *server) ServerVersion() (*version.Info, error) {
	s.asked++
	return &version.Info{GitVersion: "v1.36.0"}, s.err
}

func ask(c *Check) (int, string) {
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path, nil))
	return w.Code, strings.Join(strings.Fields(w.Body.String()), "")
}

func TestTheAnswerIsKubeVirts(t *testing.T) {
	api := &server{}
	c := &Check{APIServer: api, ConfigVersion: func() string { return "17" }}
	for range 3 {
		code, body := ask(c)
		if code != http.StatusOK || !strings.HasPrefix(body, `{"apiserver":{"connectivity":"ok","version":{`) || !strings.HasSuffix(body, `"config-resource-version":"17"}`) {
			t.Fatalf("got %d %s", code, body)
		}
	}
	if api.asked == 0 || api.asked == 3 {
		t.Errorf("the API server was asked %d times for 3 questions at once", api.asked)
	}
	lost := &Check{APIServer: &server{err: errors.New("dial tcp 10.96.0.1:443: no route")}, ConfigVersion: func() string { return "17" }}
	want := `{"apiserver":{"connectivity":"failed","error":"theAPIservercannotbereached"},"config-resource-version":"17"}`
	if code, body := ask(lost); code != http.StatusInternalServerError || body != want {
		t.Errorf("got %d %s", code, body)
	}
}

// slow is an API server that answers when the test says so.
type slow struct{ asked, answer chan struct{} }

func (s slow) ServerVersion() (*version.Info, error) {
	s.asked <- struct{}{}
	<-s.answer
	return &version.Info{GitVersion: "v1.36.0"}, nil
}

func TestNobodyWaitsForASlowAPIServerLongerThanTheyWant(t *testing.T) {
	api := slow{asked: make(chan struct{}), answer: make(chan struct{})}
	c := &Check{APIServer: api, ConfigVersion: func() string { return "17" }}
	codes := make(chan int)
	for range 2 {
		go func() {
			code, _ := ask(c)
			codes <- code
		}()
	}
	<-api.asked
	// A third one gives up, while the API server is asked once for all of them.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	if c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path, nil).WithContext(ctx)); w.Code != http.StatusInternalServerError {
		t.Errorf("one that gives up got %d", w.Code)
	}
	close(api.answer)
	for range 2 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("got %d", code)
		}
	}
}
