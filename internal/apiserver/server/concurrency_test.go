// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"github.com/vireo-project/vireo/internal/apiserver/subresource"
)

// newRequest returns a request of a user.
func newRequest(verb, name string) *http.Request {
	r := httptest.NewRequest(http.MethodPut, "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/"+verb, nil)
	return r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: name}))
}

// TestConcurrencyLimitOfATenant: the service accounts of one namespace freeze guests that do not respond, and reach their limit.
// Others are still served.
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
			if mux.ServeHTTP(w, newRequest("freeze", fmt.Sprintf("system:serviceaccount:tenant:%d", i))); w.Code != http.StatusOK {
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
