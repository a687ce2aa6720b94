// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package stream

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
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

// gauges are KubeVirt's (docs/observability/metrics.md).
var gauges = map[Kind]*gauge{
	Console:     newGauge("kubevirt_console_active_connections", "Consoles that are open to a VMI."),
	VNC:         newGauge("kubevirt_vnc_active_connections", "VNC connections that are open to a VMI."),
	USBRedir:    newGauge("kubevirt_usbredir_active_connections", "USB redirections that are open to a VMI."),
	PortForward: newGauge("kubevirt_portforward_active_tunnels", "Tunnels that are open to ports of a VMI."),
}

// Collectors returns the metrics of all bridges of the process.
func Collectors() []prometheus.Collector {
	all := make([]prometheus.Collector, 0, len(gauges))
	for _, g := range gauges {
		all = append(all, g.vec)
	}
	return all
}

// gauge counts the open streams by VMI. A VMI without open streams has no series, so that deleted VMIs leave none behind.
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
