// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/vireo-project/vireo/test/quantile"
)

// What the guest does during a migration.
const (
	idle     = "idle"
	dirtying = "dirtying"
)

// Targets for the medians.
const (
	// mostTotal is the total time as a multiple of virsh's.
	mostTotal = 1.15
	// mostDowntime is the downtime in milliseconds beyond virsh's.
	mostDowntime = 50
)

// sides are CPU times of both sides.
type sides struct{ source, target time.Duration }

// series contains the times of migrations.
type series struct {
	total, downtime []time.Duration
	// cpu is user and system time of all processes of a side, and client the part of the agent or of virsh.
	cpu, client []sides
}

// sideFigures are milliseconds of CPU.
type sideFigures struct {
	Source quantile.Pair `json:"source"`
	Target quantile.Pair `json:"target"`
}

func sidesOf(all []sides) sideFigures {
	var source, target []time.Duration
	for _, one := range all {
		source, target = append(source, one.source), append(target, one.target)
	}
	return sideFigures{Source: quantile.Milliseconds(source), Target: quantile.Milliseconds(target)}
}

// comparison contains the results of one kind of migration.
type comparison struct {
	Load          string        `json:"load"`
	TLS           bool          `json:"tls"`
	Count         int           `json:"count"`
	Vireo         quantile.Pair `json:"vireo_ms"`
	Virsh         quantile.Pair `json:"virsh_ms"`
	VireoDowntime quantile.Pair `json:"vireo_downtime_ms"`
	VirshDowntime quantile.Pair `json:"virsh_downtime_ms"`
	// VireoCPU and VirshCPU are of QEMU, libvirtd and the agent or virsh, on each side.
	VireoCPU sideFigures `json:"vireo_cpu_ms"`
	VirshCPU sideFigures `json:"virsh_cpu_ms"`
	// VireoAgentCPU is the agents' part of it, and VirshClientCPU that of virsh, which runs at the source.
	VireoAgentCPU  sideFigures `json:"vireo_agent_cpu_ms"`
	VirshClientCPU sideFigures `json:"virsh_client_cpu_ms"`
	// Ratio and ExtraDowntime compare the medians, and Met reports whether both meet their targets.
	Ratio         float64 `json:"ratio"`
	ExtraDowntime float64 `json:"extra_downtime_ms"`
	Met           bool    `json:"met"`
}

func newComparison(load string, tls bool, ours, theirs *series) *comparison {
	c := &comparison{
		Load: load, TLS: tls, Count: len(ours.total),
		Vireo: quantile.Milliseconds(ours.total), Virsh: quantile.Milliseconds(theirs.total),
		VireoDowntime: quantile.Milliseconds(ours.downtime), VirshDowntime: quantile.Milliseconds(theirs.downtime),
		VireoCPU: sidesOf(ours.cpu), VirshCPU: sidesOf(theirs.cpu), VireoAgentCPU: sidesOf(ours.client),
		VirshClientCPU: sidesOf(theirs.client),
	}
	c.ExtraDowntime = c.VireoDowntime.P50 - c.VirshDowntime.P50
	if c.Virsh.P50 > 0 {
		c.Ratio = c.Vireo.P50 / c.Virsh.P50
	}
	c.Met = c.Ratio <= mostTotal && c.ExtraDowntime <= mostDowntime
	return c
}

// comparisons contains all results. Those outside of the list are for the default: an idle guest, with TLS.
type comparisons struct {
	*comparison
	CPU         string        `json:"cpu"`
	Comparisons []*comparison `json:"migrations"`
}

// cpuMeans explains what is counted as CPU time.
const cpuMeans = "user and system time, from /proc/<pid>/stat (steps of 10 ms), of all processes in the Pod's PID namespace with those that have\n" +
	"ended (libvirtd, and QEMU with the guest's own work), and of that side's agent, or of virsh at the source"

// publish writes the results as JSON, and as a table to a text file next to it.
func (all *comparisons) publish(file string) error {
	all.comparison, all.CPU = all.Comparisons[0], strings.ReplaceAll(cpuMeans, "\n", " ")
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o600); err != nil {
		return err
	}
	table := all.table()
	AddReportEntry("figures", table)
	return os.WriteFile(strings.TrimSuffix(file, ".json")+".txt", []byte(table), 0o600)
}

// table formats the results for a reader.
func (all *comparisons) table() string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	// a Builder takes everything
	row := func(format string, values ...any) { _, _ = fmt.Fprintf(w, format+"\n", values...) }
	row("guest\tTLS\tby\ttotal\tdowntime\tCPU source\tof it agent, virsh\tCPU target\tof it agent\tagainst virsh")
	pair := func(p quantile.Pair) string { return fmt.Sprintf("%.0f / %.0f", p.P50, p.P95) }
	for _, c := range all.Comparisons {
		row("%s\t%s\tVireo\t%s\t%s\t%s\t%s\t%s\t%s\t× %.2f, %+.0f ms", c.Load,
			map[bool]string{true: "on", false: "off"}[c.TLS],
			pair(c.Vireo), pair(c.VireoDowntime), pair(c.VireoCPU.Source), pair(c.VireoAgentCPU.Source),
			pair(c.VireoCPU.Target), pair(c.VireoAgentCPU.Target), c.Ratio, c.ExtraDowntime)
		row("\t\tvirsh\t%s\t%s\t%s\t%s\t%s\t\t%s", pair(c.Virsh), pair(c.VirshDowntime),
			pair(c.VirshCPU.Source), pair(c.VirshClientCPU.Source), pair(c.VirshCPU.Target),
			map[bool]string{true: "met", false: "missed"}[c.Met])
	}
	_ = w.Flush()
	_, _ = fmt.Fprintf(&text,
		"%d migrations of each kind; p50 / p95 in ms. Targets for medians: total at most × %.2f, downtime at most %+d ms.\nCPU: %s.\n",
		all.Comparisons[0].Count, mostTotal, mostDowntime, cpuMeans)
	return text.String()
}

// tick is the unit of CPU times in /proc (USER_HZ, which is 100 on all of Linux that programs see).
const tick = 10 * time.Millisecond

// statTimes returns the sums of utime and stime, and of cutime and cstime, from /proc/<pid>/stat (proc_pid_stat(5)).
func statTimes(pid string) (own, children time.Duration, ok bool) {
	line, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return 0, 0, false
	}
	// The name before it may contain spaces.
	fields := strings.Fields(string(line[strings.LastIndexByte(string(line), ')')+1:]))
	// The first of these is the third field of the line, and utime the fourteenth.
	const utime = 14 - 3
	if len(fields) < utime+4 {
		return 0, 0, false
	}
	var times [4]time.Duration
	for i := range times {
		n, err := strconv.ParseInt(fields[utime+i], 10, 64)
		if err != nil {
			return 0, 0, false
		}
		times[i] = time.Duration(n) * tick
	}
	return times[0] + times[1], times[2] + times[3], true
}

// cpuOf returns the CPU time of one process.
func cpuOf(pid int) time.Duration {
	GinkgoHelper()
	own, _, ok := statTimes(strconv.Itoa(pid))
	Expect(ok).To(BeTrue(), "process %d does not exist", pid)
	return own
}

// cpu returns the CPU time of all processes that run or have run in the Pod: an ended process counts as its parent's
// child, and one without a parent as a child of PID 1.
func (p *pod) cpu() time.Duration {
	GinkgoHelper()
	var sum time.Duration
	p.processes(func(pid string) {
		if own, children, ok := statTimes(pid); ok {
			sum += own + children
		}
	})
	return sum
}

// processes visits the processes of the Pod's PID namespace.
func (p *pod) processes(visit func(pid string)) {
	GinkgoHelper()
	ours, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", p.daemon.PID()))
	Expect(err).NotTo(HaveOccurred())
	entries, err := os.ReadDir("/proc")
	Expect(err).NotTo(HaveOccurred())
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if theirs, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns/pid")); err == nil && theirs == ours {
			visit(e.Name())
		}
	}
}
