// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package health

import (
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
	lost := &Check{APIServer: &server{err: errors.New("no route")}, ConfigVersion: func() string { return "17" }}
	want := `{"apiserver":{"connectivity":"failed","error":"noroute"},"config-resource-version":"17"}`
	if code, body := ask(lost); code != http.StatusInternalServerError || body != want {
		t.Errorf("got %d %s", code, body)
	}
}
