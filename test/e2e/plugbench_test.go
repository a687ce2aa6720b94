// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/auditlog"
	"github.com/vireo-project/vireo/test/quantile"
)

var (
	// plugsReport is the file for the figures of `make bench-hotplug`; without it, nothing is measured.
	plugsReport = os.Getenv("VIREO_E2E_PLUGS_REPORT")
	// plugsAudit is the API server's audit log, from which writes are counted.
	plugsAudit = os.Getenv("VIREO_CLUSTER_AUDIT_LOG")
)

// plugRest is how long the components write nothing before an operation is over, and guestRest for how long a guest at
// rest is measured.
const (
	plugRest  = 3 * time.Second
	guestRest = 10 * time.Second
)

// plugAllowance is how many milliseconds longer than the attachment Pod's own start a plug may take.
const plugAllowance = 300

// sizeReporter prints the number of the guest's CPUs, as its ACPI tables have it, and its memory in MiB, when they
// change.
const sizeReporter = `is=nothing
(while usleep 100000; do
	read name kib unit </proc/meminfo
	now="$(cat /sys/bus/acpi/devices/LNXCPU:*/status | grep -cx 15) CPU $((kib / 1024)) MiB"
	[ "$now" = "$is" ] || { is=$now; say "VIREO-GUEST-SIZE $now"; }
done) &
`

var (
	pluggedLine   = regexp.MustCompile(`VIREO-PLUGGED sd`)
	unpluggedLine = regexp.MustCompile(`VIREO-UNPLUGGED block`)
)

var _ = Describe("The costs of hotplug", func() {
	It("are measured", func(ctx context.Context) {
		if plugsReport == "" {
			Skip("only `make bench-hotplug` measures")
		}
		needLocalNodes()
		g := &pluggedGuest{migratingGuest: countingGuest("measured"), places: map[string]string{}}
		DeferCleanup(func(ctx context.Context) { dumpFailed(ctx, g.namespace) }, nodeTimeout(time.Minute))
		g.start(ctx, withMemory("1Gi"), withUserData(plugLogger+sizeReporter))
		g.plug(ctx, "files")
		pods := g.followAttachments(ctx)
		report := &plugReport{}
		for range plugRounds {
			report.addPlug(g.measurePlug(ctx, pods))
			report.addUnplug(g.measureUnplug(ctx))
		}
		before := g.records(ctx, "files")
		g.expectLoggedFor(ctx, "files", before, guestRest)
		report.RestStall = g.stall(ctx, before)
		for _, step := range []struct {
			name, patch string
			seen        *regexp.Regexp
		}{
			{"1 to 2 sockets", `{"cpu":{"sockets":2}}`, regexp.MustCompile(`VIREO-GUEST-SIZE 2 CPU`)},
			{"1Gi to 1536Mi", `{"memory":{"guest":"1536Mi"}}`, regexp.MustCompile(`VIREO-GUEST-SIZE \d+ CPU 1[345]\d\d MiB`)},
			{"1536Mi to 1Gi", `{"memory":{"guest":"1Gi"}}`, regexp.MustCompile(`VIREO-GUEST-SIZE \d+ CPU (9\d\d|8\d\d) MiB`)},
		} {
			report.Steps = append(report.Steps, g.measureStep(ctx, step.name, step.patch, step.seen))
		}
		report.publish()
	}, specTimeout(12*time.Minute+time.Duration(plugRounds)*time.Minute))
})

// attachmentTimes are when attachment Pods were seen, by the name of their volume: the newest of each. The API's own
// stamps are whole seconds.
type attachmentTimes struct {
	mu             sync.Mutex
	created, ready map[string]time.Time
}

// followAttachments watches the attachment Pods until the spec ends.
func (g *pluggedGuest) followAttachments(ctx context.Context) *attachmentTimes {
	GinkgoHelper()
	t := &attachmentTimes{created: map[string]time.Time{}, ready: map[string]time.Time{}}
	background, stop := context.WithCancel(context.Background())
	DeferCleanup(stop)
	options := metav1.ListOptions{LabelSelector: v1.AppLabel + "=" + launcherpod.AttachmentLabelValue}
	stream, err := clientset.CoreV1().Pods(g.namespace).Watch(ctx, options)
	Expect(err).NotTo(HaveOccurred())
	go func() {
		for background.Err() == nil {
			for event := range stream.ResultChan() {
				if pod, ok := event.Object.(*corev1.Pod); ok {
					t.see(pod, time.Now())
				}
			}
			// The API server ends a watch after some time. What it reports again is not newer.
			if next, err := clientset.CoreV1().Pods(g.namespace).Watch(background, options); err == nil {
				stream = next
			}
		}
		stream.Stop()
	}()
	return t
}

func (t *attachmentTimes) see(pod *corev1.Pod, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name := pod.Spec.Volumes[0].Name + "/" + string(pod.UID)
	if _, known := t.created[name]; !known {
		t.created[name] = now
	}
	for _, c := range pod.Status.Conditions {
		if _, known := t.ready[name]; !known && c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			t.ready[name] = now
		}
	}
}

// of returns when the attachment Pod of a volume that was created after a time was created, and when it was ready.
func (t *attachmentTimes) of(volume string, after time.Time) (created, ready time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, when := range t.created {
		if strings.HasPrefix(name, volume+"/") && when.After(after) {
			return when, t.ready[name]
		}
	}
	return created, ready
}

// put sends a request for a verb of the VM, as virtctl does.
func (g *pluggedGuest) put(ctx context.Context, verb string, options any) {
	GinkgoHelper()
	body, err := json.Marshal(options)
	Expect(err).NotTo(HaveOccurred())
	result := clientset.CoreV1().RESTClient().Verb(http.MethodPut).AbsPath(
		verbPath(g.namespace, "virtualmachines", g.name, verb)).
		SetHeader("Content-Type", "application/json").Body(body).Do(ctx)
	Expect(result.Error()).To(Succeed())
}

// printedAt waits until the guest has printed a line after a time, and returns when the container's runtime received
// it.
func (g *pluggedGuest) printedAt(ctx context.Context, line *regexp.Regexp, after time.Time) time.Time {
	GinkgoHelper()
	pod := launcherPod(ctx, g.instance)
	var at time.Time
	Eventually(func(gomega Gomega) {
		since := metav1.NewTime(after.Add(-time.Second))
		stream, err := clientset.CoreV1().Pods(g.namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
			Container: launcherpod.ConsoleLogContainer, Timestamps: true, SinceTime: &since,
		}).Stream(ctx)
		gomega.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = stream.Close() }()
		at = firstLine(bufio.NewScanner(stream), line, after)
		gomega.Expect(at.IsZero()).To(BeFalse(), "the guest has not printed %q", line)
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(100*time.Millisecond).
		Should(Succeed(), func() string { return g.describe(ctx) })
	return at
}

// firstLine returns the time of the first matching line of a log with times that is after a time.
func firstLine(lines *bufio.Scanner, line *regexp.Regexp, after time.Time) time.Time {
	for lines.Scan() {
		stamp, text, _ := strings.Cut(lines.Text(), " ")
		when, err := time.Parse(time.RFC3339Nano, stamp)
		if err == nil && when.After(after) && line.MatchString(text) {
			return when
		}
	}
	return time.Time{}
}

// plugTimes are those of one plug, in milliseconds, and the writes.
type plugTimes struct {
	// ToPod is the time from the request to the creation of the attachment Pod, Pod from that until the Pod is ready,
	// ToGuest from that until the guest has the disk.
	ToPod, Pod, ToGuest float64
	writes              []auditlog.Write
}

func (g *pluggedGuest) measurePlug(ctx context.Context, pods *attachmentTimes) plugTimes {
	GinkgoHelper()
	before := g.records(ctx, "block")
	offset, err := auditlog.Offset(plugsAudit)
	Expect(err).NotTo(HaveOccurred())
	start := time.Now()
	g.put(ctx, "addvolume", v1.AddVolumeOptions{
		Name: "block",
		Disk: &v1.Disk{Name: "block", Serial: "block", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}}},
		VolumeSource: &v1.HotplugVolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "block"},
		}},
	})
	has := g.printedAt(ctx, pluggedLine, start)
	g.expectVolume(ctx, "block", HaveField("Phase", v1.VolumeReady))
	g.expectLogged(ctx, "block", before)
	writes := g.writesSince(ctx, offset)
	created, ready := pods.of("block", start)
	Expect(created.IsZero() || ready.IsZero()).To(BeFalse(), "the attachment Pod was not seen")
	return plugTimes{
		ToPod: milliseconds(created.Sub(start)), Pod: milliseconds(ready.Sub(created)), ToGuest: milliseconds(has.Sub(ready)),
		writes: writes,
	}
}

// unplugTimes are those of one unplug, from the request, in milliseconds, and the writes.
type unplugTimes struct {
	// FromGuest is the time until the guest does not have the disk, Gone until the status does not have the volume.
	FromGuest, Gone float64
	writes          []auditlog.Write
}

func (g *pluggedGuest) measureUnplug(ctx context.Context) unplugTimes {
	GinkgoHelper()
	offset, err := auditlog.Offset(plugsAudit)
	Expect(err).NotTo(HaveOccurred())
	start := time.Now()
	g.put(ctx, "removevolume", v1.RemoveVolumeOptions{Name: "block"})
	Eventually(func() []v1.VolumeStatus { return vmi(ctx, g.namespace, g.name).Status.VolumeStatus }).WithContext(ctx).
		WithTimeout(bootTimeout).WithPolling(20 * time.Millisecond).ShouldNot(ContainElement(HaveField("Name", "block")))
	gone := time.Now()
	released := g.printedAt(ctx, unpluggedLine, start)
	g.expectNoVolume(ctx, "block")
	writes := g.writesSince(ctx, offset)
	return unplugTimes{FromGuest: milliseconds(released.Sub(start)), Gone: milliseconds(gone.Sub(start)), writes: writes}
}

// stepTimes are those of one change of the guest's size.
type stepTimes struct {
	Name string `json:"name"`
	// ToGuest is the time from the change of the VM until the guest has the size.
	ToGuest float64 `json:"toGuestMs"`
	// Stall is the longest time between two records of the log meanwhile.
	Stall  float64        `json:"stallMs"`
	Writes map[string]int `json:"writes"`
}

// measureStep changes the domain of the VM's template, and waits until the guest has the size.
func (g *pluggedGuest) measureStep(ctx context.Context, name, domain string, seen *regexp.Regexp) stepTimes {
	GinkgoHelper()
	By("changing the size: " + name)
	before := g.records(ctx, "files")
	offset, err := auditlog.Offset(plugsAudit)
	Expect(err).NotTo(HaveOccurred())
	start := time.Now()
	kubectl(ctx, "", "patch", "-n", g.namespace, "vm", g.name, "--type=merge", "--patch", `{"spec":{"template":{"spec":{"domain":`+domain+`}}}}`)
	at := g.printedAt(ctx, seen, start)
	writes := g.writesSince(ctx, offset)
	step := stepTimes{Name: name, ToGuest: milliseconds(at.Sub(start)), Stall: g.stall(ctx, before),
		Writes: map[string]int{}}
	for kind, n := range countWrites(writes) {
		step.Writes[kind] = n
	}
	return step
}

// writesSince waits until the components have written nothing for a while, because an operation's last writes belong to
// it, and returns the writes since an offset of the audit log.
func (g *pluggedGuest) writesSince(ctx context.Context, offset int64) []auditlog.Write {
	GinkgoHelper()
	var writes []auditlog.Write
	last := time.Now()
	Eventually(func(gomega Gomega) {
		now, err := auditlog.Since(plugsAudit, offset, g.namespace)
		gomega.Expect(err).NotTo(HaveOccurred())
		if len(now) != len(writes) {
			writes, last = now, time.Now()
		}
		gomega.Expect(time.Since(last)).To(BeNumerically(">=", plugRest), "the components are still writing")
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed())
	return writes
}

// expectLoggedFor waits until the guest has logged to a volume for some time, by its own clock, from a number of
// records on.
func (g *pluggedGuest) expectLoggedFor(ctx context.Context, name string, before int, d time.Duration) {
	GinkgoHelper()
	Eventually(func(gomega Gomega) {
		entries, err := readLog(ctx, g.places[name])
		gomega.Expect(err).NotTo(HaveOccurred())
		gomega.Expect(len(entries)).To(BeNumerically(">", before))
		gomega.Expect(entries[len(entries)-1].uptime - entries[before].uptime).To(BeNumerically(">=", d.Seconds()))
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed(), "the log on volume %s", name)
}

// stall returns the longest time between two records of the log on the file system, in milliseconds, from a number of
// records on.
func (g *pluggedGuest) stall(ctx context.Context, before int) float64 {
	GinkgoHelper()
	entries, err := readLog(ctx, g.places["files"])
	Expect(err).NotTo(HaveOccurred())
	longest := 0.0
	for i := max(before, 1); i < len(entries); i++ {
		longest = max(longest, entries[i].uptime-entries[i-1].uptime)
	}
	return longest * 1000
}

// countWrites counts our components' writes by the kind of the object.
func countWrites(writes []auditlog.Write) map[string]int {
	counts := map[string]int{}
	for _, w := range writes {
		if w.Ours() {
			counts[w.Resource]++
		}
	}
	return counts
}

// plugReport is what `make bench-hotplug` prints and writes.
type plugReport struct {
	Rounds int `json:"rounds"`
	// Total is the time from the request to the disk in the guest, Extra what of that is not the attachment Pod's own
	// start.
	Total     quantile.Pair `json:"plugMs"`
	Extra     quantile.Pair `json:"plugExtraMs"`
	ToPod     quantile.Pair `json:"requestToPodMs"`
	Pod       quantile.Pair `json:"podStartMs"`
	ToGuest   quantile.Pair `json:"podToGuestMs"`
	FromGuest quantile.Pair `json:"unplugGuestMs"`
	Gone      quantile.Pair `json:"unplugMs"`
	// PlugWrites and UnplugWrites are our components' writes per operation, by the kind of the object.
	PlugWrites   map[string]float64 `json:"writesPerPlug"`
	UnplugWrites map[string]float64 `json:"writesPerUnplug"`
	// RestStall is the longest time between two records of the log while nothing happens.
	RestStall float64     `json:"restStallMs"`
	Steps     []stepTimes `json:"steps"`
	// ExtraAtMost is the target for the median of Extra.
	ExtraAtMost float64 `json:"plugExtraAtMostMs"`
	Met         bool    `json:"met"`

	plugs   []plugTimes
	unplugs []unplugTimes
}

func (r *plugReport) addPlug(t plugTimes)     { r.plugs = append(r.plugs, t) }
func (r *plugReport) addUnplug(t unplugTimes) { r.unplugs = append(r.unplugs, t) }

// pairOf returns the quantiles of a figure of several operations.
func pairOf[T any](all []T, figure func(T) float64) quantile.Pair {
	values := make([]float64, 0, len(all))
	for _, one := range all {
		values = append(values, figure(one))
	}
	return quantile.Of(values)
}

// summarize computes the figures.
func (r *plugReport) summarize() {
	r.Rounds = len(r.plugs)
	r.Total = pairOf(r.plugs, func(t plugTimes) float64 { return t.ToPod + t.Pod + t.ToGuest })
	r.Extra = pairOf(r.plugs, func(t plugTimes) float64 { return t.ToPod + t.ToGuest })
	r.ToPod = pairOf(r.plugs, func(t plugTimes) float64 { return t.ToPod })
	r.Pod = pairOf(r.plugs, func(t plugTimes) float64 { return t.Pod })
	r.ToGuest = pairOf(r.plugs, func(t plugTimes) float64 { return t.ToGuest })
	r.FromGuest = pairOf(r.unplugs, func(t unplugTimes) float64 { return t.FromGuest })
	r.Gone = pairOf(r.unplugs, func(t unplugTimes) float64 { return t.Gone })
	r.PlugWrites, r.UnplugWrites = map[string]float64{}, map[string]float64{}
	for _, t := range r.plugs {
		for kind, n := range countWrites(t.writes) {
			r.PlugWrites[kind] += float64(n) / float64(len(r.plugs))
		}
	}
	for _, t := range r.unplugs {
		for kind, n := range countWrites(t.writes) {
			r.UnplugWrites[kind] += float64(n) / float64(len(r.unplugs))
		}
	}
	r.ExtraAtMost, r.Met = plugAllowance, r.Extra.P50 <= plugAllowance
}

// publish writes the JSON, and the table beside it.
func (r *plugReport) publish() {
	GinkgoHelper()
	r.summarize()
	table := r.table()
	AddReportEntry("hotplug", table)
	text, err := json.MarshalIndent(r, "", "  ")
	Expect(err).NotTo(HaveOccurred())
	Expect(os.MkdirAll(filepath.Dir(plugsReport), 0o755)).To(Succeed())
	Expect(os.WriteFile(plugsReport, append(text, '\n'), 0o600)).To(Succeed())
	Expect(os.WriteFile(strings.TrimSuffix(plugsReport, ".json")+".txt", []byte(table), 0o600)).To(Succeed())
}

// table formats the report for a reader.
func (r *plugReport) table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(format string, values ...any) { _, _ = fmt.Fprintf(w, format+"\n", values...) }
	row("%d rounds\tp50 ms\tp95 ms", r.Rounds)
	for _, line := range []struct {
		title string
		pair  quantile.Pair
	}{
		{"plug: from the request to the disk in the guest", r.Total},
		{"  from the request to the attachment Pod", r.ToPod},
		{"  the attachment Pod's own start", r.Pod},
		{"  from the Pod to the disk in the guest", r.ToGuest},
		{"  beyond the Pod's own start", r.Extra},
		{"unplug: from the request until the guest has no disk", r.FromGuest},
		{"  until the status has no volume", r.Gone},
	} {
		row("%s\t%.0f\t%.0f", line.title, line.pair.P50, line.pair.P95)
	}
	row("writes of the components\tplug\tunplug")
	for _, kind := range []string{"virtualmachines", "virtualmachineinstances", "pods", "controllerrevisions", "events"} {
		row("  %s\t%.1f\t%.1f", kind, r.PlugWrites[kind], r.UnplugWrites[kind])
	}
	row("change of the size\tms to the guest\tlongest stall, ms\twrites")
	row("  none\t\t%.0f\t", r.RestStall)
	for _, step := range r.Steps {
		row("  %s\t%.0f\t%.0f\t%v", step.Name, step.ToGuest, step.Stall, step.Writes)
	}
	row("target: at most %.0f ms beyond the Pod's own start\t%.0f\t%s", r.ExtraAtMost, r.Extra.P50,
		map[bool]string{true: "met", false: "missed"}[r.Met])
	_ = w.Flush()
	return b.String()
}
