// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestQueuesHaveKubeVirtsNames(t *testing.T) {
	r := prometheus.NewRegistry()
	depth := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "workqueue_depth", Help: "h"},
		[]string{"name", "controller", "priority"})
	adds := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "workqueue_adds_total", Help: "h"},
		[]string{"name", "controller"})
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "workqueue_work_duration_seconds", Help: "h", Buckets: []float64{1}, NativeHistogramBucketFactor: 1.1,
	}, []string{"name", "controller"})
	other := prometheus.NewCounter(prometheus.CounterOpts{Name: "workqueue_other_total", Help: "h"})
	r.MustRegister(depth, adds, took, other)
	depth.WithLabelValues("node", "node", "0").Set(2)
	depth.WithLabelValues("node", "node", "-100").Set(3)
	depth.WithLabelValues("mine", "mine", "").Set(1)
	adds.WithLabelValues("node", "node").Add(7)
	took.WithLabelValues("node", "node").Observe(0.5)

	want := `
# HELP kubevirt_workqueue_adds_total h
# TYPE kubevirt_workqueue_adds_total counter
kubevirt_workqueue_adds_total{name="virt-controller-node"} 7
# HELP kubevirt_workqueue_depth h
# TYPE kubevirt_workqueue_depth gauge
kubevirt_workqueue_depth{name="mine"} 1
kubevirt_workqueue_depth{name="virt-controller-node"} 5
# HELP kubevirt_workqueue_work_duration_seconds h
# TYPE kubevirt_workqueue_work_duration_seconds histogram
kubevirt_workqueue_work_duration_seconds_bucket{name="virt-controller-node",le="1"} 1
kubevirt_workqueue_work_duration_seconds_bucket{name="virt-controller-node",le="+Inf"} 1
kubevirt_workqueue_work_duration_seconds_sum{name="virt-controller-node"} 0.5
kubevirt_workqueue_work_duration_seconds_count{name="virt-controller-node"} 1
`
	names := map[string]string{"node": "virt-controller-node"}
	if err := testutil.GatherAndCompare(queues{from: r, names: names, only: true}, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	families, err := queues{from: r, names: names}.Gather()
	if err != nil || len(families) != 4+3 {
		t.Errorf("%d families (%v): the registry's own are missing", len(families), err)
	}
}

// slow is a gatherer that takes some time.
type slow struct {
	clock *clocktesting.FakePassiveClock
	takes time.Duration
	calls int
}

func (s *slow) Gather() ([]*dto.MetricFamily, error) {
	s.calls++
	s.clock.SetTime(s.clock.Now().Add(s.takes))
	return nil, nil
}

// A client that requests the metrics without a pause makes the component gather them for a tenth of the time.
func TestGatheringIsShared(t *testing.T) {
	for name, tc := range map[string]struct {
		takes, fresh, again time.Duration
	}{
		"quick":     {time.Millisecond, minAge - time.Millisecond, minAge},
		"slow":      {400 * time.Millisecond, 3500 * time.Millisecond, 3600 * time.Millisecond},
		"very slow": {5 * time.Second, maxAge - time.Millisecond, maxAge},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
			from := &slow{clock: clock, takes: tc.takes}
			s := &shared{from: from, clock: clock}
			gather := func(want int) {
				t.Helper()
				if _, err := s.Gather(); err != nil || from.calls != want {
					t.Errorf("gathered %d times (%v), want %d", from.calls, err, want)
				}
			}
			gather(1)
			ended := clock.Now()
			clock.SetTime(ended.Add(tc.fresh))
			gather(1)
			clock.SetTime(ended.Add(tc.again))
			gather(2)
		})
	}
}

func TestSyncs(t *testing.T) {
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }
	exist := map[types.NamespacedName]bool{key("a"): true, key("b"): true}
	s := &Syncs{Exists: func(_ context.Context, vmi types.NamespacedName) bool { return exist[vmi] }}
	called := 0
	r := s.Wrap(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		called++
		return reconcile.Result{}, nil
	}))
	reconciled := func(name string) {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key(name)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b", "a", "gone"} {
		reconciled(name)
	}
	expect := func(want string) {
		t.Helper()
		want = "# HELP kubevirt_vmi_sync_total How often a VMI was reconciled.\n# TYPE kubevirt_vmi_sync_total counter\n" +
			want
		if err := testutil.CollectAndCompare(s, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
	}
	expect("kubevirt_vmi_sync_total{name=\"a\",namespace=\"ns\"} 2\n" +
		"kubevirt_vmi_sync_total{name=\"b\",namespace=\"ns\"} 1\n")
	delete(exist, key("a"))
	reconciled("a")
	expect("kubevirt_vmi_sync_total{name=\"b\",namespace=\"ns\"} 1\n")
	if called != 5 || len(s.count) != 1 {
		t.Errorf("called %d times, %d VMIs are remembered", called, len(s.count))
	}
}

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
		return client.Get().Namespace("ns").Resource("pods").Name("secret-name").MaxRetries(0).Do(t.Context()).Into(
			&corev1.Pod{})
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
		if label.GetName() == "url" &&
			(strings.Contains(label.GetValue(), "secret") || !strings.Contains(label.GetValue(), "pods")) {
			t.Errorf("the URL is %s, not a template", label.GetValue())
		}
	}
	if took := families[0].Metric[0].Histogram.GetSampleSum(); took < 0 || took > time.Hour.Seconds() {
		t.Errorf("%v seconds", took)
	}
}
