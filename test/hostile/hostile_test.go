// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hostile

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/vireo-project/vireo/api/v1"
)

const (
	honestGuests, hostileLaunchers = 10, 50
	// roundsEnv is how often the honest guests are started, paused, migrated and stopped, without and with hostile
	// launchers. The default is enough for the assertions, and little for a measurement.
	roundsEnv, defaultRounds = "VIREO_HOSTILE_ROUNDS", 2

	// The largest cost of a hostile launcher. Goroutines are those of the agent (a worker's call, the relay's two, the
	// connection's, the polls of the guest agent and their connections) and those of this suite, which simulate the
	// launcher.
	goroutinesEach, threadsEach, descriptorsEach = 30, 2, 16
	// writesAtOnce is the burst of status writes of a VMI. After that, one write per second is permitted.
	writesAtOnce = 20
	// memoryEach is in bytes: the longest message three times (relay, C library, Go), and its parsed XML.
	memoryEach = 12 << 20
)

func TestHostileLaunchersDoNotDelayOthers(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("KUBEBUILDER_ASSETS is not set: it names the directory with etcd and kube-apiserver")
	}
	// The agent's log about fifty launchers is not part of the output.
	ctrl.SetLogger(logr.Discard())
	rounds := defaultRounds
	if n, err := strconv.Atoi(os.Getenv(roundsEnv)); err == nil && n > 0 {
		rounds = n
	}
	w := newWorld(t)
	for _, namespace := range []string{honestNamespace, hostileNamespace} {
		expect(t, w.api.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	}
	// The first guests fill caches and connections, and are not measured.
	w.run("warm", 1)
	scraped := w.honest("scraped")
	if !scraped.start() {
		t.FailNow()
	}
	defer scraped.remove()
	alone := w.measure("alone", rounds)
	start := time.Now()
	hostiles := w.addHostile(hostileLaunchers)
	beside := w.measure("beside", rounds)
	took := time.Since(start)
	hostileWrites := int64(0)
	for _, g := range hostiles {
		count := w.writes.of(g.key())
		if limit := writesAtOnce + int64(took/time.Second) + 1; count > limit {
			t.Errorf("the status of %s was written %d times in %s, more than %d", g.key(), count, took, limit)
		}
		hostileWrites += count
	}
	expectMetrics(t, w.metrics, scraped.key())
	r := newReport(alone, beside, hostileWrites, took)
	t.Log("\n" + r.String())
	expect(t, r.write())

	expectWithin(t, "goroutines", alone.most.Goroutines, beside.most.Goroutines, goroutinesEach)
	expectWithin(t, "threads", alone.most.Threads, beside.most.Threads, threadsEach)
	expectWithin(t, "descriptors", alone.most.Descriptors, beside.most.Descriptors, descriptorsEach)
	expectWithin(t, "bytes of memory", alone.most.Memory, beside.most.Memory, memoryEach)
	for _, g := range hostiles {
		// Whatever its launcher reports, the VMI must not get a final phase: its Pod runs.
		vmi := &v1.VirtualMachineInstance{}
		expect(t, w.api.Get(context.Background(), g.key(), vmi))
		if phase := vmi.Status.Phase; phase != v1.Scheduled && phase != v1.Running {
			t.Errorf("%s is %s", g.key(), phase)
		}
	}
}

// expectWithin fails if the hostile launchers cost more than each may.
func expectWithin(t *testing.T, what string, before, after, each int64) {
	t.Helper()
	if limit := before + hostileLaunchers*each; after > limit {
		t.Errorf("%d %s, %d without hostile launchers: more than %d for each", after, what, before, each)
	}
}

// expectMetrics fails if a scrape has no metrics of a guest.
func expectMetrics(t *testing.T, c prometheus.Collector, vmi types.NamespacedName) {
	t.Helper()
	text, err := testutil.CollectAndFormat(c, expfmt.TypeTextPlain, "kubevirt_vmi_cpu_usage_seconds_total")
	if err != nil {
		t.Errorf("a scrape: %v", err)
	}
	if want := fmt.Sprintf("name=%q,namespace=%q,", vmi.Name, vmi.Namespace); !strings.Contains(string(text), want) {
		t.Errorf("no metrics of %s:\n%s", vmi, text)
	}
}

// measurement is the result of some rounds.
type measurement struct {
	samples map[string][]time.Duration
	most    resources
}

// measure runs rounds, and records the process's largest use of resources after a round.
func (w *world) measure(name string, rounds int) measurement {
	m := measurement{samples: map[string][]time.Duration{}}
	for round := range rounds {
		for operation, sample := range w.run(fmt.Sprintf("%s-%d", name, round), honestGuests) {
			m.samples[operation] = append(m.samples[operation], sample...)
		}
		m.most = m.most.max(readResources(w.t))
	}
	return m
}

// The operations. opAll is all of one goroutine: two starts, a pause, a migration and a stop.
const opStart, opPause, opMigrate, opStop, opAll = "start", "pause", "migrate", "stop", "all five"

// run starts, pauses, migrates and stops guests, all of them at once.
func (w *world) run(name string, count int) map[string][]time.Duration {
	var mu sync.Mutex
	samples := map[string][]time.Duration{}
	timed := func(operation string, do func() bool) bool {
		start := time.Now()
		ok := do()
		if ok {
			mu.Lock()
			defer mu.Unlock()
			samples[operation] = append(samples[operation], time.Since(start))
		}
		return ok
	}
	var all sync.WaitGroup
	for i := range count {
		// A guest that has migrated cannot be stopped on this node.
		migrates, stops := w.honest(fmt.Sprintf("%s-migrates-%d", name, i)), w.honest(fmt.Sprintf("%s-stops-%d", name, i))
		all.Go(func() {
			defer migrates.remove()
			defer stops.remove()
			timed(opAll, func() bool {
				return timed(opStart, migrates.start) && timed(opPause, migrates.pause) && timed(opMigrate, migrates.migrate) &&
					timed(opStart, stops.start) && timed(opStop, stops.stop)
			})
		})
	}
	all.Wait()
	return samples
}
