// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package stream

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/component/metrics"
)

// Kind is the kind of a stream, by which streams are counted.
type Kind string

// Kinds of streams. KubeVirt has no metric for VSOCK.
const (
	Console     Kind = "console"
	VNC         Kind = "vnc"
	USBRedir    Kind = "usbredir"
	PortForward Kind = "portforward"
	VSOCK       Kind = "vsock"
)

// gauges are KubeVirt's metrics of open streams (docs/metrics.md).
var gauges = map[Kind]*gauge{
	Console:     newGauge("kubevirt_console_active_connections", "Consoles that are open to a VMI."),
	VNC:         newGauge("kubevirt_vnc_active_connections", "VNC connections that are open to a VMI."),
	USBRedir:    newGauge("kubevirt_usbredir_active_connections", "USB redirections that are open to a VMI."),
	PortForward: newGauge("kubevirt_portforward_active_tunnels", "Tunnels that are open to ports of a VMI."),
}

// connections are the times of the last streams of all kinds.
var connections = &lastConnections{limit: maxLastConnections, now: time.Now, at: map[types.NamespacedName]time.Time{}}

// Collectors returns the metrics of all bridges of the process, and of the process itself.
func Collectors(ready func() bool) []prometheus.Collector {
	all := make([]prometheus.Collector, 0, len(gauges)+2)
	all = append(all, connections, metrics.NewStatus("virt_api_ready_status", "1 if this virt-api is ready.", ready))
	for _, g := range gauges {
		all = append(all, g.vec)
	}
	return all
}

// gauge counts the open streams by VMI. A VMI without open streams has no series, so that deleted VMIs leave none
// behind.
type gauge struct {
	vec  *prometheus.GaugeVec
	mu   sync.Mutex
	open map[types.NamespacedName]int
}

func newGauge(name, help string) *gauge {
	return &gauge{
		vec:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"namespace", "vmi"}),
		open: map[types.NamespacedName]int{},
	}
}

// count counts a stream as open until the returned function is called.
func (k Kind) count(instance types.NamespacedName) (done func()) {
	connections.note(instance)
	g, counted := gauges[k]
	if !counted {
		return func() {}
	}
	g.add(instance, 1)
	return func() { g.add(instance, -1) }
}

func (g *gauge) add(instance types.NamespacedName, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[instance] += n; g.open[instance] == 0 {
		delete(g.open, instance)
		g.vec.DeleteLabelValues(instance.Namespace, instance.Name)
		return
	}
	g.vec.WithLabelValues(instance.Namespace, instance.Name).Set(float64(g.open[instance]))
}

// maxLastConnections limits for how many VMIs the time of the last stream is stored. virt-api does not watch VMIs and
// so does not know which were deleted; those with the oldest streams are removed first.
const maxLastConnections = 10000

// lastConnections are the times at which streams to VMIs were last opened.
type lastConnections struct {
	limit int
	now   func() time.Time

	mu sync.Mutex
	at map[types.NamespacedName]time.Time
}

var lastConnection = metrics.Describe("vmi_last_api_connection_timestamp_seconds",
	"When a console, a screen, a tunnel or a USB redirection of a VMI was last opened, in Unix time.", "namespace", "vmi")

func (l *lastConnections) note(instance types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.at[instance]; !known && len(l.at) >= l.limit {
		var oldest types.NamespacedName
		for other, at := range l.at {
			if earliest, found := l.at[oldest]; !found || at.Before(earliest) {
				oldest = other
			}
		}
		delete(l.at, oldest)
	}
	l.at[instance] = l.now()
}

// Describe implements prometheus.Collector.
func (*lastConnections) Describe(to chan<- *prometheus.Desc) { to <- lastConnection }

// Collect implements prometheus.Collector.
func (l *lastConnections) Collect(to chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for instance, at := range l.at {
		to <- metrics.Gauge(lastConnection, float64(at.Unix()), instance.Namespace, instance.Name)
	}
}
