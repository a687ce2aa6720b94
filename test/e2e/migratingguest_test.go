// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/quantile"
)

// logRecord is the size of a record of the guest's log: a sector.
const logRecord = 512

// migratingUserData starts programs that reveal errors of a migration:
//   - a counter in memory, on the console and on a disk that is transferred;
//   - a log on the shared disk, the one without a serial: each record has its number, the guest's uptime and the
//     SHA-256 of both and the previous sum. A second running guest would have another uptime and break the chain;
//   - an echo server on the second network;
//   - a program that changes memory continuously.
const migratingUserData = "#!/bin/sh\n" + counter + `
ip addr add ` + guestAddress + `/24 dev eth1; ip link set eth1 up
nc -ll -p 7 -e cat &
` + logger + `(while true; do for i in 1 2 3 4 5 6 7 8; do cat /bin/busybox >/run/load$i; usleep 50000; done; done) &
`

// logger writes the log to the disk without a serial.
const logger = `for d in /sys/block/vd*; do
	[ -n "$(cat $d/serial)" ] && continue
	(n=0 h=none
	while true; do
		n=$((n+1)); read up idle </proc/uptime
		h=$(echo "$n $up $h" | sha256sum); h=${h%% *}
		printf '%-511s\n' "$n $up $h"
	done | dd of=/dev/${d##*/} bs=512 iflag=fullblock oflag=direct 2>/dev/null) &
done
`

// logEntry is a record of the log.
type logEntry struct {
	number int
	uptime float64
}

// records returns the number of records of a guest's log on a disk, and checks them. The guest may be writing the last
// one.
func records(ctx context.Context, device string) int {
	GinkgoHelper()
	var entries []logEntry
	Eventually(func() (err error) {
		entries, err = readLog(ctx, device)
		return err
	}).WithContext(ctx).WithTimeout(5*time.Second).WithPolling(pollInterval).Should(Succeed(), "the log on %s", device)
	return len(entries)
}

// readLog reads the guest's log from a disk and checks all its sums and numbers.
func readLog(ctx context.Context, device string) ([]logEntry, error) {
	info, err := os.Stat(device)
	if err != nil {
		return nil, err
	}
	// Direct I/O avoids this host's page cache of a device, because the guest also writes without it. Not every file
	// system has it.
	how := "iflag=direct"
	if info.Mode().IsRegular() {
		how = "iflag=fullblock"
	}
	content, err := exec.CommandContext(ctx, "dd", "if="+device, "bs=1M", how, "status=none").Output()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", device, err)
	}
	var entries []logEntry
	sum := "none"
	for len(content) >= logRecord && content[0] != 0 {
		record := string(bytes.TrimRight(content[:logRecord], " \n"))
		content = content[logRecord:]
		fields := strings.Fields(record)
		if len(fields) != 3 {
			return entries, fmt.Errorf("record %d is %q", len(entries)+1, record)
		}
		expected := fmt.Sprintf("%x", sha256.Sum256([]byte(fields[0]+" "+fields[1]+" "+sum+"\n")))
		if fields[2] != expected {
			return entries, fmt.Errorf("record %d is %q, but its sum would be %s after %s", len(entries)+1, record, expected,
				sum)
		}
		sum = fields[2]
		entry := logEntry{}
		if entry.number, err = strconv.Atoi(fields[0]); err != nil || entry.number != len(entries)+1 {
			return entries, fmt.Errorf("record %d is %q", len(entries)+1, record)
		}
		if entry.uptime, err = strconv.ParseFloat(fields[1], 64); err != nil {
			return entries, fmt.Errorf("record %d is %q: %w", len(entries)+1, record, err)
		}
		if len(entries) > 0 && entry.uptime < entries[len(entries)-1].uptime {
			return entries, fmt.Errorf("record %d is %q: the guest's time went back from %g", len(entries)+1, record,
				entries[len(entries)-1].uptime)
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// consoleLogs contains the guest's console output in all its Pods.
type consoleLogs struct {
	mu   sync.Mutex
	seen map[types.UID]func() string
	// inOrder has those of seen in the order in which the Pods started.
	inOrder []func() string
}

// follow follows each launcher Pod of a VMI from its start.
func (e *consoleLogs) follow(ctx context.Context, instance *v1.VirtualMachineInstance) {
	defer GinkgoRecover()
	for ctx.Err() == nil {
		pods := &corev1.PodList{}
		if err := k8s.List(ctx, pods, client.InNamespace(instance.Namespace),
			client.MatchingLabels{v1.CreatedByLabel: string(instance.UID)}); err == nil {
			for i := range pods.Items {
				e.add(ctx, &pods.Items[i])
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (e *consoleLogs) add(ctx context.Context, pod *corev1.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen[pod.UID] != nil || pod.Status.Phase != corev1.PodRunning {
		return
	}
	if read, err := followPod(ctx, pod); err == nil {
		e.seen[pod.UID] = read
		e.inOrder = append(e.inOrder, read)
	}
}

// text returns all that the guest has printed.
func (e *consoleLogs) text() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var b strings.Builder
	for _, read := range e.inOrder {
		b.WriteString(read())
	}
	return b.String()
}

// counted returns the numbers that the guest has printed, without duplicates.
func (e *consoleLogs) counted() []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []int
	for _, read := range e.seen {
		for _, found := range countLine.FindAllStringSubmatch(read(), -1) {
			if n, err := strconv.Atoi(found[1]); err == nil {
				all = append(all, n)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// latest returns the last number.
func (e *consoleLogs) latest() int {
	all := e.counted()
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1]
}

// migrationTimes are the times of one migration, in milliseconds.
type migrationTimes struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Total is the time from the request to the migration's final phase.
	Total float64 `json:"totalMs"`
	// PingGap is the longest time without a reply to a ping, ConnectionGap the longest time without data on the
	// connection.
	PingGap       float64 `json:"downtimeMs,omitempty"`
	ConnectionGap float64 `json:"connectionMs,omitempty"`
	// Announced is the time from the last reply on the source to the first frame that announces the guest on the target.
	// QEMU sends RARP, the guest ARP.
	Announced float64 `json:"announcedMs,omitempty"`
	RARP      int     `json:"rarp,omitempty"`
	ARP       int     `json:"arp,omitempty"`
}

// addGaps adds the longest gaps of replies and connection, and the announcements since the request. All of them are
// counted: on a busy machine the longest gap can follow them.
func (j *migrationTimes) addGaps(replies, connection *gaps, frames []announcement) {
	since, pingGap := replies.restart()
	_, connectionGap := connection.restart()
	j.PingGap, j.ConnectionGap = milliseconds(pingGap), milliseconds(connectionGap)
	for _, frame := range frames {
		if j.Announced == 0 && !frame.At.Before(since) {
			j.Announced = milliseconds(frame.At.Sub(since))
		}
		if frame.Protocol == unix.ETH_P_RARP {
			j.RARP++
		} else {
			j.ARP++
		}
	}
}

// migrationReport summarizes several migrations.
type migrationReport struct {
	Count      int                `json:"count"`
	Records    int                `json:"logRecords"`
	Counted    int                `json:"counted"`
	Total      map[string]float64 `json:"totalMs"`
	PingGap    map[string]float64 `json:"downtimeMs,omitempty"`
	Connection map[string]float64 `json:"connectionMs,omitempty"`
	Announced  map[string]float64 `json:"announcedMs,omitempty"`
	Each       []migrationTimes   `json:"migrations"`
}

func newMigrationReport(each []migrationTimes) *migrationReport {
	figures := func(value func(migrationTimes) float64) map[string]float64 {
		var all []float64
		for _, times := range each {
			all = append(all, value(times))
		}
		return map[string]float64{"p50": quantile.Nearest(all, 0.50), "p95": quantile.Nearest(all, 0.95),
			"max": quantile.Nearest(all, 1)}
	}
	return &migrationReport{
		Count: len(each), Each: each,
		Total:      figures(func(j migrationTimes) float64 { return j.Total }),
		PingGap:    figures(func(j migrationTimes) float64 { return j.PingGap }),
		Connection: figures(func(j migrationTimes) float64 { return j.ConnectionGap }),
		Announced:  figures(func(j migrationTimes) float64 { return j.Announced }),
	}
}

// table formats the report for a reader.
func (j *migrationReport) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d migrations, %d log records without a gap or a wrong sum, %d numbers without a gap, one connection\n", j.Count, j.Records, j.Counted)
	fmt.Fprintf(&b, "%-34s %9s %9s %9s\n", "ms", "p50", "p95", "max")
	for _, line := range []struct {
		title   string
		figures map[string]float64
	}{{"total, request to Succeeded", j.Total}, {"downtime, by ping", j.PingGap},
		{"first announcement, by frames", j.Announced}, {"longest gap of the TCP connection", j.Connection}} {
		fmt.Fprintf(&b, "%-34s %9.0f %9.0f %9.0f\n", line.title, line.figures["p50"], line.figures["p95"],
			line.figures["max"])
	}
	return b.String()
}

// write writes the report to a file.
func (j *migrationReport) write(path string) {
	GinkgoHelper()
	text, err := json.MarshalIndent(j, "", "  ")
	Expect(err).NotTo(HaveOccurred())
	Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	Expect(os.WriteFile(path, append(text, '\n'), 0o600)).To(Succeed())
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
