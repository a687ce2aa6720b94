// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

func TestOperation(t *testing.T) {
	for name, tc := range map[string]struct{ method, url, resource, verb string }{
		"list":                {"GET", "/api/v1/pods?limit=500", "pods", "LIST"},
		"list of a namespace": {"GET", "/api/v1/namespaces/ns/pods", "pods", "LIST"},
		"watch":               {"GET", "/apis/kubevirt.io/v1/virtualmachines?watch=true", "virtualmachines", "WATCH"},
		"get":                 {"GET", "/apis/kubevirt.io/v1/namespaces/ns/virtualmachines/vm", "virtualmachines", "GET"},
		"get of the cluster":  {"GET", "/api/v1/nodes/node-1", "nodes", "GET"},
		"get of a namespace":  {"GET", "/api/v1/namespaces/ns", "namespaces", "GET"},
		"list of namespaces":  {"GET", "/api/v1/namespaces", "namespaces", "LIST"},
		"create":              {"POST", "/api/v1/namespaces/ns/pods", "pods", "CREATE"},
		"patch of a status":   {"PATCH", "/apis/kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm/status", "virtualmachineinstances", "PATCH"},
		"update":              {"PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l", "leases", "UPDATE"},
		"delete":              {"DELETE", "/api/v1/namespaces/ns/pods/p", "pods", "DELETE"},
		"discovery":           {"GET", "/apis/kubevirt.io/v1", "none", "none"},
		"version":             {"GET", "/version", "none", "none"},
		"another method":      {"OPTIONS", "/api/v1/pods", "pods", "OPTIONS"},
	} {
		t.Run(name, func(t *testing.T) {
			resource, verb := operation(httptest.NewRequestWithContext(t.Context(), tc.method, tc.url, nil))
			if resource != tc.resource || verb != tc.verb {
				t.Errorf("got %s %s", verb, resource)
			}
		})
	}
}

// failing fails requests, or passes them on.
type failing struct {
	next http.RoundTripper
	err  error
}

func (f *failing) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.err != nil {
		return nil, f.err
	}
	return f.next.RoundTrip(r)
}

// A client of Kubernetes has the metrics that client-go's hooks and our transport report.
func TestRequestsAreCounted(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Pod"}`)
	}))
	defer server.Close()
	for _, vec := range []interface{ Reset() }{requests, requestLatency, rateLimiterLatency} {
		vec.Reset()
	}
	broken := &failing{}
	config := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{
		GroupVersion: &corev1.SchemeGroupVersion, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
	}, APIPath: "/api"}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { broken.next = next; return broken })
	CountRequests(config)
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	get := func() error {
		return client.Get().Namespace("ns").Resource("pods").Name("secret-name").MaxRetries(0).Do(t.Context()).Into(&corev1.Pod{})
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	broken.err = errors.New("no route")
	if err := get(); err == nil {
		t.Fatal("no error")
	}
	host := strings.TrimPrefix(server.URL, "http://")
	want := `
# HELP kubevirt_rest_client_requests_total Requests to the API server.
# TYPE kubevirt_rest_client_requests_total counter
kubevirt_rest_client_requests_total{code="200",host="` + host + `",method="GET",resource="pods",verb="GET"} 1
kubevirt_rest_client_requests_total{code="<error>",host="` + host + `",method="GET",resource="pods",verb="GET"} 1
`
	if err := testutil.CollectAndCompare(requests, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(requestLatency)
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || len(families[0].Metric) != 1 {
		t.Fatalf("got %v (%v)", families, err)
	}
	for _, label := range families[0].Metric[0].Label {
		if label.GetName() == "url" && (strings.Contains(label.GetValue(), "secret") || !strings.Contains(label.GetValue(), "pods")) {
			t.Errorf("the URL is %s, not a template", label.GetValue())
		}
	}
	if took := families[0].Metric[0].Histogram.GetSampleSum(); took < 0 || took > time.Hour.Seconds() {
		t.Errorf("%v seconds", took)
	}
}
