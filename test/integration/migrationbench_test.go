// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/libvirtrpc"
	"github.com/vireo-project/vireo/test/libvirtd"
)

const (
	// benchEnv names the environment variable with the file that the benchmark writes, benchCountEnv the one with the number of
	// migrations of each kind.
	benchEnv      = "VIREO_BENCH_MIGRATE"
	benchCountEnv = "VIREO_BENCH_MIGRATE_COUNT"
)

// quantiles are of milliseconds.
type quantiles struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
}

// figures are what migrations of one kind took.
type figures struct {
	Load          string    `json:"load"`
	TLS           bool      `json:"tls"`
	Count         int       `json:"count"`
	Vireo         quantiles `json:"vireo_ms"`
	Virsh         quantiles `json:"virsh_ms"`
	VireoDowntime quantiles `json:"vireo_downtime_ms"`
	VirshDowntime quantiles `json:"virsh_downtime_ms"`
}

// series is what migrations took.
type series struct{ total, downtime []time.Duration }

func quantilesOf(values []time.Duration) quantiles {
	sorted := slices.Sorted(slices.Values(values))
	at := func(share float64) float64 {
		return float64(sorted[min(int(share*float64(len(sorted))), len(sorted)-1)].Microseconds()) / 1000
	}
	return quantiles{P50: at(0.5), P95: at(0.95)}
}

// watcher notes when a libvirtd said that a guest stopped and went on.
type watcher struct {
	mu                 sync.Mutex
	suspended, resumed []time.Time
}

func watch(p *pod) *watcher {
	GinkgoHelper()
	client, err := libvirtrpc.Dial(GinkgoT().Context(), p.daemon.Socket())
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(client.Close)
	Expect(client.SubscribeLifecycle(GinkgoT().Context())).To(Succeed())
	w := &watcher{}
	go func() {
		for event := range client.Events() {
			w.mu.Lock()
			switch event.Type {
			case libvirtrpc.EventSuspended:
				w.suspended = append(w.suspended, time.Now())
			case libvirtrpc.EventResumed:
				w.resumed = append(w.resumed, time.Now())
			default:
			}
			w.mu.Unlock()
		}
	}()
	return w
}

// after is the first of the times that is not before another.
func (w *watcher) after(times *[]time.Time, begin time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range *times {
		if !t.Before(begin) {
			return t
		}
	}
	return time.Time{}
}

// race is a guest that moves back and forth.
type race struct {
	*move
	watchers map[*pod]*watcher
}

// run moves the guest once and notes what it took.
func (r *race) run(s *series, tls bool, do func(hypervisor.CopyRequest)) {
	GinkgoHelper()
	request := r.request()
	if tls {
		r.secure(&request)
	}
	begin := time.Now()
	do(request)
	s.total = append(s.total, time.Since(begin))
	here, there := r.watchers[r.from], r.watchers[r.to]
	var resumed time.Time
	Eventually(func() time.Time { resumed = there.after(&there.resumed, begin); return resumed }).ShouldNot(BeZero())
	stopped := here.after(&here.suspended, begin)
	Expect(stopped).NotTo(BeZero())
	s.downtime = append(s.downtime, resumed.Sub(stopped))
	r.back(&linux{pod: r.to, conn: r.there, domain: r.guest.domain})
}

// vireo moves the guest as the agents do: the target's runs as soon as the source's QEMU has ended.
func (r *race) vireo(request hypervisor.CopyRequest) {
	GinkgoHelper()
	ctx := GinkgoT().Context()
	resumed := errors.New("not resumed")
	request.Dead = func() { resumed = r.there.ResumeTarget(ctx, request.Domain) }
	Expect(r.here.Copy(ctx, request)).To(Succeed())
	Expect(resumed).NotTo(HaveOccurred())
}

// virsh moves the guest with libvirt's own tool, which is in the launcher's image.
func (r *race) virsh(request hypervisor.CopyRequest) {
	GinkgoHelper()
	text, err := request.XML.Marshal()
	Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(GinkgoT().TempDir(), "there.xml")
	Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
	rootfs := os.Getenv(libvirtd.RootfsEnv)
	args := []string{
		"--library-path", rootfs + "/usr/lib/x86_64-linux-gnu", rootfs + "/usr/bin/virsh", "--connect", r.from.daemon.URI(),
		"migrate", "--live", "--persistent", "--migrateuri", fmt.Sprintf("tcp://%s:%d", request.Address, hypervisor.MigrationMemoryPort),
		"--listen-address", request.Address, "--xml", file, "--persistent-xml", file,
	}
	if request.TLSName != "" {
		args = append(args, "--tls", "--tls-destination", request.TLSName)
	}
	virsh := exec.CommandContext(GinkgoT().Context(), rootfs+"/lib64/ld-linux-x86-64.so.2",
		append(args, request.Domain, r.to.daemon.URI())...)
	virsh.Env = append(os.Environ(), "LIBVIRT_AUTOSTART=0")
	out, err := virsh.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
}

var _ = Describe("The benchmark of migrations", Label("libvirt", "bench"), func() {
	It("compares ours with virsh's", func() {
		result := os.Getenv(benchEnv)
		if result == "" {
			Skip(benchEnv + " is not set: it names the file for the figures")
		}
		count := 5
		if text := os.Getenv(benchCountEnv); text != "" {
			var err error
			count, err = strconv.Atoi(text)
			Expect(err).NotTo(HaveOccurred())
		}
		m := newMove()
		r := &race{move: m, watchers: map[*pod]*watcher{m.from: watch(m.from), m.to: watch(m.to)}}
		var all []figures
		for _, load := range []string{"idle", "dirtying"} {
			if load == "dirtying" {
				m.guest.listen()
				m.guest.start("mkdir -p /tmp/d && mount -t tmpfs d /tmp/d; while :; do dd if=/dev/zero of=/tmp/d/x bs=1M count=16 conv=notrunc 2>/dev/null; done &")
			}
			for _, tls := range []bool{false, true} {
				var ours, theirs series
				for n := range count {
					// Both take turns, in either direction.
					if n%2 == 0 {
						r.run(&ours, tls, r.vireo)
						r.run(&theirs, tls, r.virsh)
					} else {
						r.run(&theirs, tls, r.virsh)
						r.run(&ours, tls, r.vireo)
					}
				}
				all = append(all, figures{
					Load: load, TLS: tls, Count: count, Vireo: quantilesOf(ours.total), Virsh: quantilesOf(theirs.total),
					VireoDowntime: quantilesOf(ours.downtime), VirshDowntime: quantilesOf(theirs.downtime),
				})
			}
		}
		text, err := json.MarshalIndent(map[string]any{"migrations": all}, "", "  ")
		Expect(err).NotTo(HaveOccurred())
		Expect(os.MkdirAll(filepath.Dir(result), 0o755)).To(Succeed())
		Expect(os.WriteFile(result, append(text, '\n'), 0o600)).To(Succeed())
		AddReportEntry("figures", string(text))
	})
})
