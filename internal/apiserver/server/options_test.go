// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/vireo-project/vireo/internal/component/health"
)

func TestHealthNeedsNoAuthorization(t *testing.T) {
	answer := func(code int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
	}
	with := &Options{Health: answer(http.StatusOK), AuthorizeMetrics: true}
	for _, tc := range []struct {
		options *Options
		path    string
		want    int
	}{
		{with, health.Path, http.StatusOK},
		{with, "/" + health.Path, http.StatusOK},
		{with, health.Path + "/etcd", http.StatusUnauthorized},
		{with, "/apis" + health.Path, http.StatusUnauthorized},
		{&Options{AuthorizeMetrics: true}, "/" + health.Path, http.StatusUnauthorized},
	} {
		w := httptest.NewRecorder()
		request := httptest.NewRequest(http.MethodGet, "https://virt-api", nil)
		request.URL.Path = tc.path
		tc.options.openPaths(answer(http.StatusTeapot), answer(http.StatusUnauthorized)).ServeHTTP(w, request)
		if w.Code != tc.want {
			t.Errorf("%s: %d, want %d", tc.path, w.Code, tc.want)
		}
	}
}
