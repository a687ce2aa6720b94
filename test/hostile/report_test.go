// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hostile

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/vireo-project/vireo/test/quantile"
)

const (
	// reportEnv names the file that the report is written to.
	reportEnv = "VIREO_BENCH_HOSTILE"
	// target is the desired ratio of an honest guest's times with and without hostile launchers. It is reported and not
	// asserted, because the computer may be busy.
	target = 1.5
)

// resources are those of the test's process, which runs the agent and the launchers' side of all connections.
type resources struct {
	Goroutines  int64 `json:"goroutines"`
	Threads     int64 `json:"threads"`
	Descriptors int64 `json:"descriptors"`
	// Memory is the resident set in bytes.
	Memory int64 `json:"memoryBytes"`
}

func (r resources) max(other resources) resources {
	return resources{
		max(r.Goroutines, other.Goroutines), max(r.Threads, other.Threads), max(r.Descriptors, other.Descriptors),
		max(r.Memory, other.Memory),
	}
}

var statusField = regexp.MustCompile(`(?m)^(VmRSS|Threads):\s*(\d+)`)

// readResources reads the resources of this process.
func readResources(t *testing.T) resources {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	expect(t, err)
	fields := map[string]int64{}
	for _, m := range statusField.FindAllStringSubmatch(string(status), -1) {
		fields[m[1]], err = strconv.ParseInt(m[2], 10, 64)
		expect(t, err)
	}
	descriptors, err := os.ReadDir("/proc/self/fd")
	expect(t, err)
	return resources{int64(runtime.NumGoroutine()), fields["Threads"], int64(len(descriptors)), fields["VmRSS"] << 10}
}

// operation contains the times of an operation in milliseconds.
type operation struct {
	Name   string        `json:"name"`
	Alone  quantile.Pair `json:"aloneMilliseconds"`
	Beside quantile.Pair `json:"besideMilliseconds"`
	// Ratio is the ratio of the medians.
	Ratio float64 `json:"ratio"`
}

// report is the table.
type report struct {
	Operations []operation `json:"operations"`
	Target     float64     `json:"targetRatio"`
	Alone      resources   `json:"alone"`
	Beside     resources   `json:"beside"`
	// HostileWrites is the number of status writes of the hostile launchers' VMIs in Seconds.
	HostileWrites int64   `json:"hostileWrites"`
	Seconds       float64 `json:"seconds"`
}

func newReport(alone, beside measurement, hostileWrites int64, took time.Duration) report {
	r := report{Target: target, Alone: alone.most, Beside: beside.most, HostileWrites: hostileWrites,
		Seconds: took.Seconds()}
	for _, name := range []string{opStart, opPause, opMigrate, opStop, opAll} {
		o := operation{Name: name, Alone: quantile.Milliseconds(alone.samples[name]),
			Beside: quantile.Milliseconds(beside.samples[name])}
		if o.Alone.P50 > 0 {
			o.Ratio = o.Beside.P50 / o.Alone.P50
		}
		r.Operations = append(r.Operations, o)
	}
	return r
}

// String formats the report as a table.
func (r report) String() string {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(table, "%d honest guests\talone p50\tp95\tbeside %d hostile p50\tp95\tratio (target %.1f)\t\n",
		honestGuests, hostileLaunchers, r.Target)
	for _, o := range r.Operations {
		_, _ = fmt.Fprintf(table, "%s\t%.0f ms\t%.0f ms\t%.0f ms\t%.0f ms\t%.2f\t\n", o.Name, o.Alone.P50, o.Alone.P95,
			o.Beside.P50, o.Beside.P95, o.Ratio)
	}
	_ = table.Flush()
	const mebibyte = 1 << 20
	_, _ = fmt.Fprintf(&b, "process: %d MiB, %d goroutines, %d threads, %d descriptors alone; %d MiB, %d, %d, %d beside\n",
		r.Alone.Memory/mebibyte, r.Alone.Goroutines, r.Alone.Threads, r.Alone.Descriptors,
		r.Beside.Memory/mebibyte, r.Beside.Goroutines, r.Beside.Threads, r.Beside.Descriptors)
	_, _ = fmt.Fprintf(&b, "writes of hostile VMIs: %d in %.0f s\n", r.HostileWrites, r.Seconds)
	return b.String()
}

// write writes the report to the file that the environment names.
func (r report) write() error {
	path := os.Getenv(reportEnv)
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o600)
}
