// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/subresource"
)

// served is what a request was answered by.
type served struct {
	verb            *subresource.Verb
	namespace, name string
}

// recording are the verbs of the API, each of which notes that it was asked.
func recording(f *testing.F, into *served) (http.Handler, *resolver) {
	f.Helper()
	verbs := (&subresource.API{}).Verbs(nil)
	for i := range verbs {
		v := &verbs[i]
		v.Serve = func(_ http.ResponseWriter, r *http.Request) error {
			*into = served{v, r.PathValue("namespace"), r.PathValue("name")}
			return nil
		}
	}
	handler, err := routes(verbs)
	if err != nil {
		f.Fatal(err)
	}
	return handler, newResolver(verbs)
}

// FuzzResolver: what a request is authorized as is what it is answered by. A path that the two read differently would let its
// client do what it may not.
func FuzzResolver(f *testing.F) {
	var got served
	handler, resolve := recording(f, &got)
	const group = "/apis/subresources.kubevirt.io/v1/"
	for _, path := range []string{
		"version", "namespaces/ns/expand-vm-spec", "namespaces/ns/virtualmachines/vm/start", "namespaces/ns/virtualmachineinstances/vm/console",
		"namespaces/ns/virtualmachineinstances/vm/vnc/screenshot", "namespaces/ns/virtualmachineinstances/vm/portforward/22/tcp",
		"namespaces/ns/virtualmachineinstances/vm%2Fconsole/pause", "namespaces/ns/virtualmachineinstances/vm/sev/fetchcertchain",
		"namespaces/ns/../other/virtualmachineinstances//vm/console", "watch/namespaces/ns/virtualmachineinstances/vm/console",
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
			t.Fatalf("%s %s is answered by %s, and not understood: %v", method, target, got.verb.RBACName(), err)
		}
		resource, below := got.verb.Resource, got.verb.Name
		if resource == "" {
			resource, below = got.verb.Name, ""
		}
		if !info.IsResourceRequest || info.APIGroup != subresource.GroupName || info.Resource != resource || info.Subresource != below ||
			info.Namespace != got.namespace || info.Name != got.name {
			t.Errorf("%s %s is answered by %s of %q/%q, and authorized as %+v", method, target, got.verb.RBACName(), got.namespace, got.name, *info)
		}
		want := map[string]string{http.MethodGet: "get", http.MethodPut: "update"}[got.verb.Method]
		if got.verb.Resource == "" && got.verb.Method == http.MethodGet {
			want = "list" // Kubernetes takes the verb's name for a kind.
		}
		if info.Verb != want {
			t.Errorf("%s %s is answered by a verb for %s, and authorized as %s", method, target, want, info.Verb)
		}
	})
}
