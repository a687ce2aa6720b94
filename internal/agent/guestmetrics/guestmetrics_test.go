// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package guestmetrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/component/metrics"
)

func guest(name string) *Guest {
	return &Guest{
		Pod:    hypervisor.PodRef{UID: types.UID("pod-" + name), VMI: types.NamespacedName{Namespace: "ns", Name: name}},
		Domain: "ns_" + name,
		Labels: map[string]string{"app": "web"}, NICs: map[string]string{"tap0": "default"},
		Disks: map[string]string{"vda": "root"}, Affinity: 8, VCPUs: 1,
	}
}

// statistics returns one of each.
func statistics() *hypervisor.Stats {
	s := &hypervisor.Stats{}
	for _, name := range []string{
		"cpu.time", "cpu.user", "cpu.system", "dirtyrate.megabytes_per_second", "balloon.current", "balloon.rss",
		"balloon.available",
		"balloon.unused", "balloon.usable", "balloon.disk_caches", "balloon.swap_in", "balloon.swap_out",
		"balloon.major_fault", "balloon.minor_fault", "vcpu.0.time", "vcpu.0.wait", "vcpu.0.delay",
		"net.0.rx.bytes", "net.0.rx.pkts", "net.0.rx.errs", "net.0.rx.drop", "net.0.tx.bytes", "net.0.tx.pkts",
		"net.0.tx.errs", "net.0.tx.drop",
		"block.0.rd.reqs", "block.0.rd.bytes", "block.0.rd.times", "block.0.wr.reqs", "block.0.wr.bytes", "block.0.wr.times",
		"block.0.fl.reqs", "block.0.fl.times",
	} {
		s.Add(name, 2e9, "")
	}
	s.Add("vcpu.0.state", 1, "")
	s.Add("net.0.name", 0, "tap0")
	s.Add("block.0.name", 0, "vda")
	return s
}

func collector(guests []*Guest, read func(context.Context, *Guest, bool) (*hypervisor.Stats, error)) *Collector {
	return New(Options{
		Node: "node-1", Guests: func() []*Guest { return guests }, Read: read, Labels: metrics.NewLabelFilter(),
		Usage: func(*Guest) *hypervisor.GuestUsage { return nil },
	})
}

func samples(t *testing.T, c prometheus.Collector, names ...string) []string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for _, family := range families {
		if len(names) > 0 && !slices.Contains(names, family.GetName()) {
			continue
		}
		if _, err := expfmt.MetricFamilyToText(&got, family); err != nil {
			t.Fatal(err)
		}
	}
	var lines []string
	for line := range strings.SplitSeq(strings.TrimSpace(got.String()), "\n") {
		if line != "" && !strings.HasPrefix(line, "#") {
			line = strings.ReplaceAll(line, `kubernetes_vmi_label_app="web",name="a",namespace="ns",node="node-1"`, "…")
			lines = append(lines, strings.TrimPrefix(line, "kubevirt_vmi_"))
		}
	}
	return lines
}

func TestUnitsAndLabels(t *testing.T) {
	c := collector([]*Guest{guest("a")},
		func(context.Context, *Guest, bool) (*hypervisor.Stats, error) { return statistics(), nil })
	now := time.Now()
	c.o.Usage = func(*Guest) *hypervisor.GuestUsage {
		u := hypervisor.NewGuestUsage(now, []hypervisor.GuestFilesystem{
			{Name: "vda1", Mountpoint: "/", Type: "ext4", UsedBytes: 1, TotalBytes: 2}, {Name: "vda1", Mountpoint: "/", Type: "ext4", UsedBytes: 9, TotalBytes: 9},
		})
		u.Load = &[3]float64{0.5, 0, 2}
		return u
	}
	want := strings.Split(strings.TrimSpace(`
cpu_system_usage_seconds_total{…} 2
cpu_usage_seconds_total{…} 2
cpu_user_usage_seconds_total{…} 2
dirty_rate_bytes_per_second{…} 2.097152e+15
filesystem_capacity_bytes{disk_name="vda1",file_system_type="ext4",kubernetes_vmi_label_app="web",mount_point="/",name="a",namespace="ns",node="node-1"} 2
filesystem_used_bytes{disk_name="vda1",file_system_type="ext4",kubernetes_vmi_label_app="web",mount_point="/",name="a",namespace="ns",node="node-1"} 1
guest_load_15m{…} 2
guest_load_1m{…} 0.5
guest_load_5m{…} 0
memory_actual_balloon_bytes{…} 2.048e+12
memory_available_bytes{…} 2.048e+12
memory_cached_bytes{…} 2.048e+12
memory_domain_bytes{…} 2.048e+12
memory_pgmajfault_total{…} 2e+09
memory_pgminfault_total{…} 2e+09
memory_resident_bytes{…} 2.048e+12
memory_swap_in_traffic_bytes{…} 2.048e+12
memory_swap_out_traffic_bytes{…} 2.048e+12
memory_unused_bytes{…} 2.048e+12
memory_usable_bytes{…} 2.048e+12
network_receive_bytes_total{interface="default",…} 2e+09
network_receive_errors_total{interface="default",…} 2e+09
network_receive_packets_dropped_total{interface="default",…} 2e+09
network_receive_packets_total{interface="default",…} 2e+09
network_traffic_bytes_total{interface="default",…,type="rx"} 2e+09
network_traffic_bytes_total{interface="default",…,type="tx"} 2e+09
network_transmit_bytes_total{interface="default",…} 2e+09
network_transmit_errors_total{interface="default",…} 2e+09
network_transmit_packets_dropped_total{interface="default",…} 2e+09
network_transmit_packets_total{interface="default",…} 2e+09
node_cpu_affinity{…} 8
storage_flush_requests_total{drive="root",…} 2e+09
storage_flush_times_seconds_total{drive="root",…} 2
storage_iops_read_total{drive="root",…} 2e+09
storage_iops_write_total{drive="root",…} 2e+09
storage_read_times_seconds_total{drive="root",…} 2
storage_read_traffic_bytes_total{drive="root",…} 2e+09
storage_write_times_seconds_total{drive="root",…} 2
storage_write_traffic_bytes_total{drive="root",…} 2e+09
vcpu_delay_seconds_total{id="0",…} 2
vcpu_seconds_total{id="0",…,state="running"} 2
vcpu_wait_seconds_total{id="0",…} 2
`), "\n")
	if diff := cmp.Diff(want, samples(t, c)); diff != "" {
		t.Error(diff)
	}
	now = now.Add(-maxUsageAge - time.Second)
	if got := samples(t, c, "kubevirt_vmi_guest_load_1m"); len(got) != 0 {
		t.Errorf("an old report is served: %v", got)
	}
}

// What libvirt does not report has no series, and a device that the VMI does not have, or has twice, has none either.
func TestMissingAndUnknownStatistics(t *testing.T) {
	c := collector([]*Guest{guest("a")}, func(context.Context, *Guest, bool) (*hypervisor.Stats, error) {
		s := &hypervisor.Stats{}
		for i, name := range []string{"vda", "vda", "evil", ""} {
			s.Add(fmt.Sprintf("block.%d.rd.reqs", i), float64(i), "")
			s.Add(fmt.Sprintf("block.%d.name", i), 0, name)
		}
		s.Add("vcpu.3.state", 77, "")
		s.Add("vcpu.3.time", 1, "")
		return s, nil
	})
	want := []string{"node_cpu_affinity{…} 8", `storage_iops_read_total{drive="root",…} 0`}
	if diff := cmp.Diff(want, samples(t, c)); diff != "" {
		t.Error(diff)
	}
}

// A launcher that does not respond delays one scrape, for scrapeTimeout, and is queried less and less often. Others
// have metrics.
func TestSilentLauncher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		queries := map[string]int{}
		c := collector([]*Guest{guest("a"), guest("silent")},
			func(ctx context.Context, g *Guest, _ bool) (*hypervisor.Stats, error) {
				mu.Lock()
				queries[g.Pod.VMI.Name]++
				mu.Unlock()
				if g.Pod.VMI.Name == "silent" {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return statistics(), nil
			})
		const interval = 30 * time.Second
		for i := range 100 {
			start := time.Now()
			if n := len(samples(t, c, "kubevirt_vmi_cpu_usage_seconds_total")); n != 1 {
				t.Fatalf("scrape %d has %d guests", i, n)
			}
			took := time.Since(start)
			if most := map[bool]time.Duration{true: scrapeTimeout}[i == 0]; took > most {
				t.Errorf("scrape %d took %s", i, took)
			}
			time.Sleep(interval - took)
		}
		synctest.Wait()
		if queries["a"] != 100 || queries["silent"] > 20 {
			t.Errorf("queries: %v", queries)
		}
	})
}

// Launchers that respond late do not occupy the slots for ever: the guests of others have metrics, and scrapes become
// short.
func TestSlowLaunchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var guests []*Guest
		for i := range 2*Slots + 20 {
			g := guest(fmt.Sprint("guest-", i))
			g.Pod.VMI.Namespace = []string{"slow-0", "slow-1", "quick"}[min(i/Slots, 2)]
			guests = append(guests, g)
		}
		c := collector(guests, func(ctx context.Context, g *Guest, _ bool) (*hypervisor.Stats, error) {
			if g.Pod.VMI.Namespace != "quick" {
				time.Sleep(9 * time.Second)
			}
			return statistics(), ctx.Err()
		})
		for i := range 20 {
			start := time.Now()
			quick := 0
			for _, line := range samples(t, c, "kubevirt_vmi_cpu_usage_seconds_total") {
				if strings.Contains(line, `namespace="quick"`) {
					quick++
				}
			}
			took := time.Since(start)
			if i >= 6 && (quick != 20 || took >= scrapeTimeout) {
				t.Errorf("scrape %d took %s and has %d guests", i, took, quick)
			}
			time.Sleep(30*time.Second - took)
		}
	})
}

// A launcher cannot add vCPUs, and the labels of a VMI are left out where they would make the response large.
func TestSizeIsBounded(t *testing.T) {
	g := guest("a")
	c := collector([]*Guest{g}, func(context.Context, *Guest, bool) (*hypervisor.Stats, error) {
		s := statistics()
		for i := range 512 {
			s.Add(fmt.Sprintf("vcpu.%d.time", i), 1, "")
			s.Add(fmt.Sprintf("vcpu.%d.state", i), 1, "")
		}
		return s, nil
	})
	if n := len(samples(t, c, "kubevirt_vmi_vcpu_seconds_total")); n != 1 {
		t.Errorf("%d vCPUs of a VMI with one", n)
	}
	for i := range 16 {
		g.Labels[fmt.Sprintf("%d-%s", i, strings.Repeat("x", 60))] = strings.Repeat("y", 63)
	}
	g.VCPUs = 64
	size := len(strings.Join(samples(t, c), "\n"))
	if few := samples(t, c, "kubevirt_vmi_cpu_usage_seconds_total"); size > 1<<20 || len(few) != 1 ||
		strings.Contains(few[0], "yyy") {
		t.Errorf("%d bytes, %.200q", size, few)
	}
	g.VCPUs = 1
	if few := samples(t, c, "kubevirt_vmi_cpu_usage_seconds_total"); len(few) != 1 || !strings.Contains(few[0], "yyy") {
		t.Errorf("labels are missing in %.200q", few)
	}
}

// The guests of one namespace cannot make the page large, and those of others keep their labels.
func TestLabelsOfAllGuestsAreLimited(t *testing.T) {
	var guests []*Guest
	for i := range 200 {
		g := guest(fmt.Sprintf("hostile-%d", i))
		for j := range 30 {
			g.Labels[fmt.Sprintf("%d-%s", j, strings.Repeat("x", 60))] = strings.Repeat("y", 63)
		}
		guests = append(guests, g)
	}
	other := guest("other")
	other.Pod.VMI.Namespace, other.Labels["team"] = "other", "blue"
	guests = append(guests, other)
	c := collector(guests, func(context.Context, *Guest, bool) (*hypervisor.Stats, error) { return statistics(), nil })
	all := strings.Join(samples(t, c), "\n")
	if len(all) > MaxLabelBytes+4<<20 || !strings.Contains(all, "yyy") || !strings.Contains(all, `kubernetes_vmi_label_team="blue"`) {
		t.Errorf("the page has %d bytes", len(all))
	}
}

// A response after the end of the scrape is used by the next one, unless it is too old.
func TestLateResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := scrapeTimeout + time.Second
		c := collector([]*Guest{guest("a")}, func(context.Context, *Guest, bool) (*hypervisor.Stats, error) {
			time.Sleep(late)
			return statistics(), nil
		})
		count := func() int { return len(samples(t, c, "kubevirt_vmi_cpu_usage_seconds_total")) }
		if n := count(); n != 0 {
			t.Errorf("%d samples before the response", n)
		}
		time.Sleep(2 * time.Second)
		if n := count(); n != 1 {
			t.Errorf("%d samples after the response", n)
		}
		time.Sleep(maxAge)
		if n := count(); n != 0 {
			t.Errorf("%d samples from an old response", n)
		}
		time.Sleep(time.Minute)
	})
}

// Scrapes in quick succession query a launcher once, and its dirty rate is measured only now and then, and not while it
// migrates.
func TestQueriesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queries, measurements := 0, 0
		g := guest("a")
		c := collector([]*Guest{g}, func(_ context.Context, _ *Guest, dirtyRate bool) (*hypervisor.Stats, error) {
			queries++
			if dirtyRate {
				measurements++
			}
			return statistics(), nil
		})
		for range 60 {
			samples(t, c)
			time.Sleep(time.Second)
		}
		if queries != 12 || measurements != 6 {
			t.Errorf("%d queries and %d measurements in a minute", queries, measurements)
		}
		g.Migrating = true
		time.Sleep(time.Minute)
		samples(t, c)
		if queries != 13 || measurements != 6 {
			t.Errorf("%d queries, %d measurements", queries, measurements)
		}
	})
}

// The launchers of one namespace do not occupy all slots, and nothing is kept of guests that are gone.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var guests []*Guest
		for i := range 3 * Slots {
			guests = append(guests, guest(fmt.Sprint("silent-", i)))
		}
		other := guest("other")
		other.Pod.VMI.Namespace = "other"
		list := slices.Concat(guests, []*Guest{other})
		var mu sync.Mutex
		inFlight, most := 0, 0
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			inFlight += n
			most = max(most, inFlight)
		}
		block := make(chan struct{})
		c := collector(nil, func(ctx context.Context, g *Guest, _ bool) (*hypervisor.Stats, error) {
			if g == other {
				return statistics(), nil
			}
			count(1)
			defer count(-1)
			select {
			case <-block:
			case <-ctx.Done():
			}
			return nil, errors.New("no response")
		})
		c.o.Guests = func() []*Guest { return list }
		n := len(samples(t, c, "kubevirt_vmi_cpu_usage_seconds_total"))
		mu.Lock()
		if n != 1 || most != slotsPerNamespace {
			t.Errorf("%d guests have metrics beside %d queries in flight", n, most)
		}
		mu.Unlock()
		close(block)
		time.Sleep(maxAge)
		list = nil
		samples(t, c)
		if n := len(c.reader.guests); n != 0 {
			t.Errorf("%d guests are remembered", n)
		}
	})
}

func TestDescribe(t *testing.T) {
	d := &libvirtxml.Domain{}
	if err := d.Unmarshal(`<domain><vcpu current='3'>4</vcpu>
		<cputune><vcpupin vcpu='0' cpuset='0-1,^1'/><vcpupin vcpu='0' cpuset='0-7'/><vcpupin vcpu='9' cpuset='0'/></cputune>
		<devices>
			<interface type='ethernet'><target dev='tap0'/><alias name='ua-nic-default'/></interface>
			<interface type='ethernet'><target dev='tap1'/><alias name='ua-nic-evil'/></interface>
			<interface type='ethernet'><target dev='tap2'/></interface>
			<disk type='file'><target dev='vda'/><alias name='ua-disk-root'/></disk>
			<disk type='file'><target dev='vdb'/><alias name='ua-disk-'/></disk>
		</devices></domain>`); err != nil {
		t.Fatal(err)
	}
	g := &Guest{}
	g.Describe(d, []string{"default"}, []string{"root"}, 8)
	if diff := cmp.Diff(&Guest{NICs: map[string]string{"tap0": "default"}, Disks: map[string]string{"vda": "root"},
		Affinity: 1 + 8 + 8}, g); diff != "" {
		t.Error(diff)
	}
	g.Describe(nil, nil, nil, 8)
}

func TestCountCPUs(t *testing.T) {
	for list, want := range map[string]int{
		"": 0, "3": 1, "0-3": 4, "0-3,8": 5, "0-3,^2": 3, "^1": 0, "3-1": 0, "x-y": 1, "0-99999999999999999999": 1,
	} {
		if got := countCPUs(list); got != want {
			t.Errorf("%q: got %d, want %d", list, got, want)
		}
	}
}

func TestWaiting(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	vmi := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }
	c := &WaitingCollector{Node: "node-1", Clock: clocktesting.NewFakePassiveClock(now), Guests: func() []Waiting {
		return []Waiting{
			{VMI: vmi("frozen"), Thaw: now.Add(time.Minute)},
			{VMI: vmi("late"), Thaw: now.Add(-time.Minute)},
			{VMI: vmi("undecided"), Owner: true},
			// Two Pods of a VMI.
			{VMI: vmi("both"), Thaw: now.Add(-time.Hour)}, {VMI: vmi("both"), Thaw: now, Owner: true},
		}
	}}
	if err := testutil.CollectAndCompare(c, strings.NewReader(`
# HELP vireo_vmi_freeze_overdue_seconds For each guest whose file systems are frozen with a time limit: how long that has passed, or 0.
# TYPE vireo_vmi_freeze_overdue_seconds gauge
vireo_vmi_freeze_overdue_seconds{name="both",namespace="ns",node="node-1"} 3600
vireo_vmi_freeze_overdue_seconds{name="frozen",namespace="ns",node="node-1"} 0
vireo_vmi_freeze_overdue_seconds{name="late",namespace="ns",node="node-1"} 60
# HELP vireo_vmi_owner_undecided 1 for each guest on either side of a migration that is paused until it is certain which of the two nodes may let it run.
# TYPE vireo_vmi_owner_undecided gauge
vireo_vmi_owner_undecided{name="both",namespace="ns",node="node-1"} 1
vireo_vmi_owner_undecided{name="undecided",namespace="ns",node="node-1"} 1
`)); err != nil {
		t.Error(err)
	}
}
