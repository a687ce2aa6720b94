// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"github.com/vireo-project/vireo/internal/apiserver/subresource"
	"github.com/vireo-project/vireo/internal/component/health"
)

// oneChunk is the size up to which net/http sends a response in one chunk.
// Source: net/http server.go, bufferBeforeChunkingSize.
const oneChunk = 2048

func TestDiscoveryFitsIntoOneChunk(t *testing.T) {
	mux := http.NewServeMux()
	if err := addDiscovery(mux, (&subresource.API{}).Verbs(nil)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/apis", "/apis/subresources.kubevirt.io", "/apis/subresources.kubevirt.io/v1",
		"/apis/subresources.kubevirt.io/v1/"} {
		get := func(encoding string) *httptest.ResponseRecorder {
			t.Helper()
			request := httptest.NewRequest(http.MethodGet, path, nil)
			request.Header.Set("Accept-Encoding", encoding)
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, request)
			if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
				t.Fatalf("%s: %d %v", path, w.Code, w.Header())
			}
			return w
		}
		plain, compressed := get(""), get("deflate, gzip")
		if n := compressed.Body.Len(); n > oneChunk {
			t.Errorf("%s: %d bytes", path, n)
		}
		z, err := gzip.NewReader(compressed.Body)
		if err != nil {
			t.Fatal(err)
		}
		uncompressed, err := io.ReadAll(z)
		if err != nil || string(uncompressed) != plain.Body.String() || plain.Header().Get("Content-Encoding") != "" {
			t.Errorf("%s: the compressed document differs: %v", path, err)
		}
	}
}

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

// newRequest returns a request of a user.
func newRequest(verb, name string) *http.Request {
	r := httptest.NewRequest(http.MethodPut,
		"/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/"+verb, nil)
	return r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: name}))
}

// TestConcurrencyLimitOfATenant: the service accounts of one namespace freeze guests that do not respond, and reach
// their limit. Others are still served.
func TestConcurrencyLimitOfATenant(t *testing.T) {
	started, unblock := make(chan struct{}), make(chan struct{})
	verb := func(name string, do func(http.ResponseWriter, *http.Request) error) subresource.Verb {
		return subresource.Verb{Resource: subresource.VirtualMachineInstances, Name: name, Method: http.MethodPut, Serve: do}
	}
	mux, err := routes([]subresource.Verb{
		verb("freeze", func(http.ResponseWriter, *http.Request) error {
			started <- struct{}{}
			<-unblock
			return nil
		}),
		verb("pause", func(http.ResponseWriter, *http.Request) error { return nil }),
	}, newDrain(clock.RealClock{}))
	if err != nil {
		t.Fatal(err)
	}
	var hanging sync.WaitGroup
	rejected := make(chan *httptest.ResponseRecorder, maxMutatingInFlight)
	for i := range maxMutatingInFlight {
		hanging.Go(func() {
			w := httptest.NewRecorder()
			if mux.ServeHTTP(w, newRequest("freeze",
				fmt.Sprintf("system:serviceaccount:tenant:%d", i))); w.Code != http.StatusOK {
				rejected <- w
			}
		})
	}
	for range maxMutatingInFlight / 2 {
		<-started
	}
	for range maxMutatingInFlight / 2 {
		w := <-rejected
		var status metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || w.Code != http.StatusTooManyRequests ||
			status.Reason != metav1.StatusReasonTooManyRequests || w.Header().Get("Retry-After") != "1" {
			t.Fatalf("got %d %v %s", w.Code, w.Header(), w.Body)
		}
	}
	for _, name := range []string{"anna", "system:serviceaccount:other:default"} {
		w := httptest.NewRecorder()
		if mux.ServeHTTP(w, newRequest("pause", name)); w.Code != http.StatusOK {
			t.Errorf("%s got %d %s", name, w.Code, w.Body)
		}
	}
	close(unblock)
	hanging.Wait()
	w := httptest.NewRecorder()
	if mux.ServeHTTP(w, newRequest("pause", "system:serviceaccount:tenant:0")); w.Code != http.StatusOK {
		t.Errorf("after the others have finished: %d %s", w.Code, w.Body)
	}
}
