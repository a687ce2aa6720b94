// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	clientmetrics "k8s.io/client-go/tools/metrics"

	// It registers its own metrics with client-go in its init function, which therefore runs before that of this package.
	_ "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// The metrics of requests to the API server, with KubeVirt's buckets. Source: kubevirt/kubevirt
// pkg/monitoring/metrics/common/client/rest_metrics.go.
var (
	requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubevirt_rest_client_requests_total", Help: "Requests to the API server.",
	}, []string{"code", "method", "host", "resource", "verb"})
	requestLatency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "kubevirt_rest_client_request_latency_seconds", Help: "How long requests to the API server took.",
		Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
	}, []string{"verb", "url"})
	rateLimiterLatency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "kubevirt_rest_client_rate_limiter_duration_seconds", Help: "How long requests to the API server waited for the client's rate limit.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 10),
	}, []string{"verb", "url"})
)

// client-go has one set of hooks, which can be registered only once, and controller-runtime has already done so. The hooks are therefore
// extended here, before the first client is created.
func init() {
	clientmetrics.RequestLatency = both{clientmetrics.RequestLatency, requestLatency}
	clientmetrics.RateLimiterLatency = both{clientmetrics.RateLimiterLatency, rateLimiterLatency}
}

// both passes a latency to two metrics.
type both struct {
	first  clientmetrics.LatencyMetric
	second *prometheus.HistogramVec
}

// Observe implements clientmetrics.LatencyMetric. The URL is a template without names, so that there are few of them.
func (b both) Observe(ctx context.Context, verb string, u url.URL, latency time.Duration) {
	b.first.Observe(ctx, verb, u, latency)
	b.second.WithLabelValues(verb, u.String()).Observe(latency.Seconds())
}

// CountRequests makes the clients of a configuration count their requests.
func CountRequests(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &counter{next} })
}

type counter struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := c.next.RoundTrip(r)
	code := "<error>"
	if err == nil {
		code = strconv.Itoa(response.StatusCode)
	}
	resource, verb := operation(r)
	requests.WithLabelValues(code, r.Method, r.URL.Host, resource, verb).Inc()
	return response, err
}

// WrappedRoundTripper implements k8s.io/apimachinery/pkg/util/net.RoundTripperWrapper.
func (c *counter) WrappedRoundTripper() http.RoundTripper { return c.next }

// verbs are KubeVirt's verbs by HTTP method, except for GET.
var verbs = map[string]string{http.MethodPost: "CREATE", http.MethodPut: "UPDATE", http.MethodPatch: "PATCH", http.MethodDelete: "DELETE"}

// operation returns the resource and the verb of a request to the API server, in KubeVirt's words.
func operation(r *http.Request) (resource, verb string) {
	const none = "none"
	segments := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(segments) > 2 && segments[0] == "api":
		segments = segments[2:]
	case len(segments) > 3 && segments[0] == "apis":
		segments = segments[3:]
	default:
		return none, none
	}
	if segments[0] == "namespaces" && len(segments) > 2 {
		segments = segments[2:]
	}
	resource = segments[0]
	if r.Method != http.MethodGet {
		if verb = verbs[r.Method]; verb == "" {
			verb = r.Method
		}
		return resource, verb
	}
	switch watch := r.URL.Query().Get("watch"); {
	case watch == "true" || watch == "1":
		return resource, "WATCH"
	case len(segments) == 1:
		return resource, "LIST"
	default:
		return resource, "GET"
	}
}

// clientCollectors are the metrics of requests to the API server.
func clientCollectors() []prometheus.Collector {
	return []prometheus.Collector{requests, requestLatency, rateLimiterLatency}
}
