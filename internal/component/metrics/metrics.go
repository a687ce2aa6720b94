// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package metrics serves the metrics of a component under KubeVirt's names, and defines the metrics that all components
// share. The names, types and labels are KubeVirt's (kubevirt/kubevirt docs/observability/metrics.md), except for those
// with the prefix vireo_; docs/metrics.md lists them.
package metrics

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	// It registers its own metrics with client-go in its init function, which therefore runs before that of this package.
	_ "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Path is the path of the metrics.
const Path = "/metrics"

// Describe describes a metric of KubeVirt's. The name has no prefix.
func Describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("kubevirt_"+name, help, labels, nil)
}

// DescribeOwn describes a metric that KubeVirt does not have. Its prefix is another, so that it cannot become one of
// KubeVirt's.
func DescribeOwn(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("vireo_"+name, help, labels, nil)
}

// Gauge returns a gauge with a value and the values of its labels.
func Gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

// Counter returns a counter with a value and the values of its labels.
func Counter(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...)
}

// Bool returns 1 for true and 0 for false.
func Bool(value bool) float64 {
	if value {
		return 1
	}
	return 0
}

const (
	// minAge and maxAge bound how long a result is cached.
	minAge, maxAge = time.Second, 10 * time.Second
	// ageFactor is how long a result is cached within these bounds, as a multiple of the time that gathering took. So
	// gathering takes at most a tenth of a CPU, however often clients, which need not authenticate, request the metrics.
	ageFactor = 9
)

// queues adds KubeVirt's metrics of work queues to those of a registry. controller-runtime's are the same, with another
// prefix and other labels. It registers itself with client-go, which accepts only one registration.
type queues struct {
	from prometheus.Gatherer
	// names are KubeVirt's names of the queues, by the names of the controllers.
	names map[string]string
	// only reports whether the other metrics of the registry are left out.
	only bool
}

// queueMetrics are the metrics of work queues by controller-runtime's names.
var queueMetrics = map[string]bool{
	"workqueue_depth": true, "workqueue_adds_total": true, "workqueue_retries_total": true, "workqueue_queue_duration_seconds": true,
	"workqueue_work_duration_seconds": true, "workqueue_unfinished_work_seconds": true, "workqueue_longest_running_processor_seconds": true,
}

// Gather implements prometheus.Gatherer.
func (q queues) Gather() ([]*dto.MetricFamily, error) {
	families, err := q.from.Gather()
	var translated []*dto.MetricFamily
	for _, family := range families {
		if queueMetrics[family.GetName()] {
			translated = append(translated, q.translate(family))
		}
	}
	if q.only {
		return translated, err
	}
	return append(families, translated...), err
}

// translate returns a family with KubeVirt's name and the label name only. Depths of different priorities are added.
func (q queues) translate(family *dto.MetricFamily) *dto.MetricFamily {
	out := &dto.MetricFamily{Name: ptr.To("kubevirt_" + family.GetName()), Help: family.Help, Type: family.Type,
		Unit: family.Unit}
	byName := map[string]*dto.Metric{}
	for _, metric := range family.Metric {
		name := q.nameOf(metric)
		known, ok := byName[name]
		if !ok {
			translated := &dto.Metric{
				Label: []*dto.LabelPair{{Name: ptr.To("name"), Value: &name}}, Counter: metric.Counter,
				Histogram: classic(metric.Histogram),
			}
			if metric.Gauge != nil {
				translated.Gauge = &dto.Gauge{Value: ptr.To(metric.Gauge.GetValue())}
			}
			byName[name], out.Metric = translated, append(out.Metric, translated)
			continue
		}
		if known.Gauge != nil {
			*known.Gauge.Value += metric.Gauge.GetValue()
		}
	}
	return out
}

func (q queues) nameOf(metric *dto.Metric) string {
	for _, label := range metric.Label {
		if label.GetName() == "name" {
			if name, ok := q.names[label.GetValue()]; ok {
				return name
			}
			return label.GetValue()
		}
	}
	return ""
}

// classic returns a histogram without its native part, which KubeVirt's do not have.
func classic(h *dto.Histogram) *dto.Histogram {
	if h == nil {
		return nil
	}
	return &dto.Histogram{SampleCount: h.SampleCount, SampleSum: h.SampleSum, Bucket: h.Bucket}
}

// shared gathers once for requests that arrive at the same time or shortly after each other.
type shared struct {
	from  prometheus.Gatherer
	clock clock.PassiveClock

	mu       sync.Mutex
	families []*dto.MetricFamily
	err      error
	until    time.Time
}

// Gather implements prometheus.Gatherer. The result must not be changed.
func (s *shared) Gather() ([]*dto.MetricFamily, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if started := s.clock.Now(); !started.Before(s.until) {
		s.families, s.err = s.from.Gather()
		ended := s.clock.Now()
		s.until = ended.Add(min(max(ageFactor*ended.Sub(started), minAge), maxAge))
	}
	return s.families, s.err
}

// Status is a gauge without labels that is 1 or 0, depending on the state of the process.
type Status struct {
	desc *prometheus.Desc
	is   func() bool
}

// NewStatus makes a Status that is 1 if the function returns true when it is scraped.
func NewStatus(name, help string, is func() bool) *Status { return &Status{Describe(name, help), is} }

// Describe implements prometheus.Collector.
func (s *Status) Describe(to chan<- *prometheus.Desc) { to <- s.desc }

// Collect implements prometheus.Collector.
func (s *Status) Collect(to chan<- prometheus.Metric) { to <- Gauge(s.desc, Bool(s.is())) }

// Closed returns a function that reports whether a channel is closed.
func Closed(c <-chan struct{}) func() bool {
	return func() bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
}

var syncsDesc = Describe("vmi_sync_total", "How often a VMI was reconciled.", "namespace", "name")

// Syncs counts the reconciliations of VMIs. A VMI that does not exist any more has no series.
type Syncs struct {
	// Exists reports whether a VMI still exists, according to a cache. It is called after each reconciliation: there is
	// one after the deletion.
	Exists func(context.Context, types.NamespacedName) bool

	mu    sync.Mutex
	count map[types.NamespacedName]uint64
}

// Wrap returns a reconciler that counts the calls of another one.
func (s *Syncs) Wrap(r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		result, err := r.Reconcile(ctx, request)
		s.add(request.NamespacedName, s.Exists(ctx, request.NamespacedName))
		return result, err
	})
}

func (s *Syncs) add(vmi types.NamespacedName, exists bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !exists {
		delete(s.count, vmi)
		return
	}
	if s.count == nil {
		s.count = map[types.NamespacedName]uint64{}
	}
	s.count[vmi]++
}

// Describe implements prometheus.Collector.
func (*Syncs) Describe(to chan<- *prometheus.Desc) { to <- syncsDesc }

// Collect implements prometheus.Collector.
func (s *Syncs) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for vmi, count := range s.count {
		to <- Counter(syncsDesc, float64(count), vmi.Namespace, vmi.Name)
	}
}

// The metrics of requests to the API server, with KubeVirt's buckets. Source: kubevirt/kubevirt
// pkg/monitoring/metrics/common/client/rest_metrics.go.
var (
	requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubevirt_rest_client_requests_total", Help: "Requests to the API server.",
	}, []string{"code", "method", "host", "resource", "verb"})
	requestLatency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "kubevirt_rest_client_request_latency_seconds", Help: "How long requests to the API server took.",
		Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45,
			60},
	}, []string{"verb", "url"})
	rateLimiterLatency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "kubevirt_rest_client_rate_limiter_duration_seconds",
		Help:    "How long requests to the API server waited for the client's rate limit.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 10),
	}, []string{"verb", "url"})
)

// client-go has one set of hooks, which can be registered only once, and controller-runtime has already done so. The
// hooks are therefore extended here, before the first client is created.
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
var verbs = map[string]string{http.MethodPost: "CREATE", http.MethodPut: "UPDATE", http.MethodPatch: "PATCH",
	http.MethodDelete: "DELETE"}

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
