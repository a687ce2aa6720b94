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

	"github.com/vireo-project/vireo/internal/subresource"
)

// asked is a request of a user.
func asked(verb, name string) *http.Request {
	r := httptest.NewRequest(http.MethodPut, "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/"+verb, nil)
	return r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: name}))
}

// TestHangingRequestsOfOneTenantLeaveRoomForOthers has a tenant freeze guests that do not answer, by several service accounts.
func TestHangingRequestsOfOneTenantLeaveRoomForOthers(t *testing.T) {
	begun, answer := make(chan struct{}), make(chan struct{})
	verb := func(name string, do func(http.ResponseWriter, *http.Request) error) subresource.Verb {
		return subresource.Verb{Resource: subresource.VirtualMachineInstances, Name: name, Method: http.MethodPut, Serve: do}
	}
	mux, err := routes([]subresource.Verb{
		verb("freeze", func(http.ResponseWriter, *http.Request) error {
			begun <- struct{}{}
			<-answer
			return nil
		}),
		verb("pause", func(http.ResponseWriter, *http.Request) error { return nil }),
	})
	if err != nil {
		t.Fatal(err)
	}
	var hanging sync.WaitGroup
	refused := make(chan *httptest.ResponseRecorder, maxMutatingInFlight)
	for i := range maxMutatingInFlight {
		hanging.Go(func() {
			w := httptest.NewRecorder()
			if mux.ServeHTTP(w, asked("freeze", fmt.Sprintf("system:serviceaccount:tenant:%d", i))); w.Code != http.StatusOK {
				refused <- w
			}
		})
	}
	for range maxMutatingInFlight / 2 {
		<-begun
	}
	for range maxMutatingInFlight / 2 {
		w := <-refused
		var status metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || w.Code != http.StatusTooManyRequests ||
			status.Reason != metav1.StatusReasonTooManyRequests || w.Header().Get("Retry-After") != "1" {
			t.Fatalf("got %d %v %s", w.Code, w.Header(), w.Body)
		}
	}
	for _, name := range []string{"anna", "system:serviceaccount:other:default"} {
		w := httptest.NewRecorder()
		if mux.ServeHTTP(w, asked("pause", name)); w.Code != http.StatusOK {
			t.Errorf("%s got %d %s", name, w.Code, w.Body)
		}
	}
	close(answer)
	hanging.Wait()
	w := httptest.NewRecorder()
	if mux.ServeHTTP(w, asked("pause", "system:serviceaccount:tenant:0")); w.Code != http.StatusOK {
		t.Errorf("after the others have ended: %d %s", w.Code, w.Body)
	}
}
