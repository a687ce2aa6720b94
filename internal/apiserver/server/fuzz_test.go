// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"k8s.io/utils/clock"

	"github.com/vireo-project/vireo/internal/apiserver/subresource"
)

// served is the verb that served a request, and the object that it got.
type served struct {
	verb            *subresource.Verb
	namespace, name string
}

// recordingHandler serves the verbs of the API with handlers that record the request, and returns the resolver of the
// same verbs.
func recordingHandler(f *testing.F, into *served) (http.Handler, *resolver) {
	f.Helper()
	verbs := (&subresource.API{}).Verbs(nil)
	for i := range verbs {
		v := &verbs[i]
		v.Serve = func(_ http.ResponseWriter, r *http.Request) error {
			*into = served{v, r.PathValue("namespace"), r.PathValue("name")}
			return nil
		}
	}
	handler, err := routes(verbs, newDrain(clock.RealClock{}))
	if err != nil {
		f.Fatal(err)
	}
	return handler, newResolver(verbs)
}

// FuzzResolver checks that a request is served by the verb, and for the object, that it was authorized for. A path that
// routing and authorization parse differently would bypass authorization.
func FuzzResolver(f *testing.F) {
	var got served
	handler, resolve := recordingHandler(f, &got)
	const group = "/apis/subresources.kubevirt.io/v1/"
	for _, path := range []string{
		"version", "namespaces/ns/expand-vm-spec", "namespaces/ns/virtualmachines/vm/start",
		"namespaces/ns/virtualmachineinstances/vm/console",
		"namespaces/ns/virtualmachineinstances/vm/vnc/screenshot",
		"namespaces/ns/virtualmachineinstances/vm/portforward/22/tcp",
		"namespaces/ns/virtualmachineinstances/vm%2Fconsole/pause",
		"namespaces/ns/virtualmachineinstances/vm/sev/fetchcertchain",
		"namespaces/ns/../other/virtualmachineinstances//vm/console",
		"watch/namespaces/ns/virtualmachineinstances/vm/console",
	} {
		f.Add(http.MethodGet, group+path)
		f.Add(http.MethodPut, group+path)
	}
	f.Fuzz(func(t *testing.T, method, target string) {
		where, err := url.ParseRequestURI(target)
		if err != nil || !strings.HasPrefix(target, "/") || strings.ContainsAny(method, " \r\n") || method == "" {
			return
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Method, r.URL, r.RequestURI = method, where, target
		got = served{}
		handler.ServeHTTP(httptest.NewRecorder(), r)
		if got.verb == nil {
			return
		}
		info, err := resolve.NewRequestInfo(r)
		if err != nil {
			t.Fatalf("%s %s is served by %s, and cannot be resolved: %v", method, target, got.verb.RBACName(), err)
		}
		resource, name := got.verb.Resource, got.verb.Name
		if resource == "" {
			resource, name = got.verb.Name, ""
		}
		if !info.IsResourceRequest || info.APIGroup != subresource.GroupName || info.Resource != resource ||
			info.Subresource != name ||
			info.Namespace != got.namespace || info.Name != got.name {
			t.Errorf("%s %s is served by %s of %q/%q, and authorized as %+v", method, target, got.verb.RBACName(), got.namespace,
				got.name, *info)
		}
		want := map[string]string{http.MethodGet: "get", http.MethodPut: "update"}[got.verb.Method]
		if got.verb.Resource == "" && got.verb.Method == http.MethodGet {
			want = "list" // For Kubernetes the verb's name is a resource, which is listed.
		}
		if info.Verb != want {
			t.Errorf("%s %s is served by a verb for %s, and authorized as %s", method, target, want, info.Verb)
		}
	})
}
