// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package guestmetrics contains the metrics of the node's running guests: what libvirt and the guest agents report
// about the use of CPU, memory, disks and network. Names, labels and units are KubeVirt's (docs/metrics.md).
//
// Everything comes from launchers and guests, which are hostile. So the number of series of a guest and the length of
// their labels are limited, and a launcher that does not respond delays a scrape only once. See ADR 80.
package guestmetrics

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/component/version"
)

// maxUsageAge is how old a report of a guest agent may be. The agent is polled every two minutes at least.
const maxUsageAge = 5 * time.Minute

// maxLabelBytes limits the labels of a VMI in all metrics of its guest together. Each of the metrics has all of them;
// beyond the limit, none has any.
const maxLabelBytes = 512 << 10

// MaxLabelBytes limits the labels of all VMIs in all metrics of their guests. A guest with ten labels of 60 bytes takes
// about 75 KiB of it. It is in memory metrics.LabelCopies times at most. A test of cmd/virt-handler/agent checks that
// this fits into the agent's memory.
const MaxLabelBytes = 12 << 20

// Options configure a Collector.
type Options struct {
	// Node is the name of the node.
	Node string
	// Guests returns the running guests of the node.
	Guests func() []*Guest
	// Read requests the statistics of a guest. With dirtyRate it starts a measurement of the dirty rate.
	Read func(ctx context.Context, guest *Guest, dirtyRate bool) (*hypervisor.Stats, error)
	// Usage returns what the guest agent last reported, or nil.
	Usage func(guest *Guest) *hypervisor.GuestUsage
	// Labels selects the labels of VMIs.
	Labels *metrics.LabelFilter
	// Clock defaults to the real clock.
	Clock clock.PassiveClock
}

// Collector exports the statistics of the node's guests.
type Collector struct {
	o      Options
	labels *metrics.LabelBudget
	reader *reader
}

// New returns a Collector.
func New(o Options) *Collector {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Collector{o: o, reader: newReader(&o), labels: &metrics.LabelBudget{
		Filter: o.Labels, Prefix: "kubernetes_vmi_label_", Bytes: MaxLabelBytes, Clock: o.Clock,
	}}
}

// Describe implements prometheus.Collector. The labels of VMIs are labels of the metrics, so nothing is described.
func (*Collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	guests := c.o.Guests()
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	c.reader.query(ctx, guests)
	objects, usages := make([]metrics.Labeled, len(guests)), make([]*hypervisor.GuestUsage, len(guests))
	for i, guest := range guests {
		if usage := c.o.Usage(guest); usage != nil && c.o.Clock.Now().Sub(usage.At) <= maxUsageAge {
			usages[i] = usage
		}
		objects[i] = metrics.Labeled{
			UID: guest.Pod.UID, Namespace: guest.Pod.VMI.Namespace, Labels: guest.Labels, Series: guest.series(usages[i]),
		}
	}
	for i, taken := range c.labels.Of(objects) {
		guest := guests[i]
		s := &series{to: to, labels: c.labelsOf(&objects[i], taken)}
		s.labels["node"], s.labels["namespace"], s.labels["name"] = c.o.Node, guest.Pod.VMI.Namespace, guest.Pod.VMI.Name
		if stats := c.reader.latest(guest); stats != nil {
			s.stats(guest, stats)
		}
		if usages[i] != nil {
			s.usage(usages[i])
		}
	}
}

// labelsOf returns the labels of a guest's VMI that were taken, within maxLabelBytes.
func (c *Collector) labelsOf(guest *metrics.Labeled, taken map[string]string) map[string]string {
	labels, size := c.labels.Filter.Select(c.labels.Prefix, taken), 0
	for name, value := range labels {
		size += len(name) + len(value)
	}
	if size*guest.Series > maxLabelBytes {
		clear(labels)
	}
	return labels
}

// series sends the metrics of one guest.
type series struct {
	to     chan<- prometheus.Metric
	labels map[string]string
}

// send sends a metric with additional labels, as pairs of a name and a value.
func (s *series) send(m *metric, value float64, more ...string) {
	labels := s.labels
	if len(more) > 0 {
		labels = maps.Clone(labels)
		for i := 0; i+1 < len(more); i += 2 {
			labels[more[i]] = more[i+1]
		}
	}
	d := prometheus.NewDesc("kubevirt_vmi_"+m.name, m.help, nil, labels)
	s.to <- prometheus.MustNewConstMetric(d, m.kind, value)
}

// values sends the metrics of statistics that libvirt reported.
func (s *series) values(rows []row, values *hypervisor.Values, more ...string) {
	for i := range rows {
		r := &rows[i]
		if value, ok := values.Get(r.stat); ok {
			s.send(&r.metric, value*r.unit, slices.Concat(more, r.labels)...)
		}
	}
}

func (s *series) stats(guest *Guest, stats *hypervisor.Stats) {
	s.values(domainRows, &stats.Domain)
	s.values(guestRows, &stats.Guest)
	if guest.Affinity > 0 {
		s.send(&nodeAffinity, float64(guest.Affinity))
	}
	for i := range stats.VCPUs[:min(len(stats.VCPUs), guest.VCPUs)] {
		vcpu, id := &stats.VCPUs[i], strconv.Itoa(i)
		s.values(vcpuRows, vcpu, "id", id)
		state, ok := vcpu.Get(hypervisor.VCPUState)
		if value, timed := vcpu.Get(hypervisor.VCPUTime); ok && timed && state < float64(len(vcpuStates)) {
			s.send(&vcpuTime, value*nanoseconds, "id", id, "state", vcpuStates[int(state)])
		}
	}
	s.devices(nicRows, stats.NICs, guest.NICs, "interface")
	s.devices(diskRows, stats.Disks, guest.Disks, "drive")
}

// devices sends the metrics of the devices that the VMI has a name for. A launcher could report other names, ever new
// ones. Of two with the same name, the first has metrics.
func (s *series) devices(rows []row, devices []hypervisor.Device, names map[string]string, label string) {
	known := map[string]bool{}
	for i := range devices {
		name := metrics.Text(names[devices[i].Name])
		if name != "" && !known[name] {
			known[name] = true
			s.values(rows, &devices[i].Values, label, name)
		}
	}
}

func (s *series) usage(usage *hypervisor.GuestUsage) {
	type key struct{ name, mountpoint, kind string }
	known := map[key]bool{}
	for i := range usage.Filesystems {
		f := &usage.Filesystems[i]
		k := key{f.Name, f.Mountpoint, f.Type}
		if known[k] {
			continue
		}
		known[k] = true
		labels := []string{"disk_name", f.Name, "mount_point", f.Mountpoint, "file_system_type", f.Type}
		s.send(&filesystemCapacity, float64(max(f.TotalBytes, 0)), labels...)
		s.send(&filesystemUsed, float64(max(f.UsedBytes, 0)), labels...)
	}
	if usage.Load != nil {
		for i := range loads {
			s.send(&loads[i], usage.Load[i])
		}
	}
}

// Node returns the metrics of the process and of its node, with the machine types that QEMU calls deprecated. ready
// reports whether the process is ready, and brokerResponds whether the virt-broker of its node responds.
func Node(node string, deprecated []string, ready, brokerResponds func() bool) []prometheus.Collector {
	build := version.Get()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubevirt_info", Help: "1, with the version of this build.",
		ConstLabels: prometheus.Labels{"goversion": build.GoVersion, "kubeversion": build.GitVersion},
	})
	info.Set(1)
	machines := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubevirt_node_deprecated_machine_types",
		Help: "1 for each machine type of the node that QEMU calls deprecated.",
	}, []string{"machine_type", "node"})
	for _, machine := range deprecated {
		machines.WithLabelValues(machine, node).Set(1)
	}
	silent := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "vireo_node_broker_silent",
		Help:        "1 if a program of virt-broker's Pod on the node does not respond to its virt-handler.",
		ConstLabels: prometheus.Labels{"node": node},
	}, func() float64 { return metrics.Bool(!brokerResponds()) })
	return []prometheus.Collector{
		info, machines, silent, metrics.NewStatus("virt_handler_ready_status", "1 if this virt-handler is ready.", ready),
	}
}

// unknownPanic is the type and the code of all panics: libvirt's event has neither. It is KubeVirt's value.
const unknownPanic = "unknown"

var panicsDesc = metrics.Describe("vmi_guest_os_panic_total",
	"Panics of the guest's kernel that its panic device has reported, until two days after the last one.",
	"namespace", "name", "type", "bugcheck_code")

// PanicCollector exports how often guests have panicked.
type PanicCollector struct {
	// Counts returns the number of panics by VMI.
	Counts func() map[types.NamespacedName]uint64
}

// Describe implements prometheus.Collector.
func (*PanicCollector) Describe(to chan<- *prometheus.Desc) { to <- panicsDesc }

// Collect implements prometheus.Collector.
func (c *PanicCollector) Collect(to chan<- prometheus.Metric) {
	for vmi, count := range c.Counts() {
		to <- metrics.Counter(panicsDesc, float64(count), vmi.Namespace, vmi.Name, unknownPanic, unknownPanic)
	}
}

// Waiting is what a guest of this node waits for.
type Waiting struct {
	// VMI is its VMI.
	VMI types.NamespacedName
	// Thaw is when its file systems, which we have frozen, must be thawed at the latest. Zero means never, or that they
	// are not frozen.
	Thaw time.Time
	// Owner reports whether a migration has paused it, and neither node may let it run yet.
	Owner bool
}

var (
	freezeOverdue = metrics.DescribeOwn("vmi_freeze_overdue_seconds",
		"For each guest whose file systems are frozen with a time limit: how long that has passed, or 0.", "node",
		"namespace", "name")
	ownerUndecided = metrics.DescribeOwn("vmi_owner_undecided",
		"1 for each guest on either side of a migration that is paused until it is certain which of the two nodes may let it run.",
		"node", "namespace", "name")
)

// WaitingCollector exports what guests wait for.
type WaitingCollector struct {
	// Node is the name of the node.
	Node string
	// Guests returns the guests that wait for something.
	Guests func() []Waiting
	// Clock is the node's clock, by which guests are thawed.
	Clock clock.PassiveClock
}

// Describe implements prometheus.Collector.
func (c *WaitingCollector) Describe(to chan<- *prometheus.Desc) {
	to <- freezeOverdue
	to <- ownerUndecided
}

// Collect implements prometheus.Collector. A VMI has at most one series of each metric, even if two of its Pods are on
// the node.
func (c *WaitingCollector) Collect(to chan<- prometheus.Metric) {
	now, thaws, undecided := c.Clock.Now(), map[types.NamespacedName]time.Time{}, map[types.NamespacedName]bool{}
	for _, guest := range c.Guests() {
		if known, ok := thaws[guest.VMI]; !guest.Thaw.IsZero() && (!ok || guest.Thaw.Before(known)) {
			thaws[guest.VMI] = guest.Thaw
		}
		undecided[guest.VMI] = undecided[guest.VMI] || guest.Owner
	}
	for vmi, thaw := range thaws {
		to <- metrics.Gauge(freezeOverdue, max(now.Sub(thaw).Seconds(), 0), c.Node, vmi.Namespace, vmi.Name)
	}
	for vmi, is := range undecided {
		if is {
			to <- metrics.Gauge(ownerUndecided, 1, c.Node, vmi.Namespace, vmi.Name)
		}
	}
}
