// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/csi"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/quantile"
)

var (
	// snapshotReport is the file for the figures of `make bench-snapshot`; without it, nothing is measured.
	snapshotReport = os.Getenv("VIREO_E2E_SNAPSHOT_REPORT")
	// snapshotRounds is how many snapshots are measured of each VM by each way.
	snapshotRounds = numberOr("VIREO_E2E_SNAPSHOTS", 5)
)

// snapshotDisks are the numbers of disks of the measured VMs.
var snapshotDisks = []int{1, 4, 16}

// snapshotPoll is the interval at which a snapshot's state is read. It is the same for both ways.
const snapshotPoll = 20 * time.Millisecond

// stallReporter writes to the file system of the first disk continuously, and waits until each write has reached the
// disk. It prints the time between two writes in hundredths of a second, by the guest's clock, unless it is what a
// write costs. A write waits while the file system is frozen. About every second it prints the time: all stalls until
// then have been printed.
const stallReporter = `#!/bin/sh
. /etc/init.d/lib
(was=
beat=0
while usleep 20000; do
	echo beat | dd of=/mnt/disk01/beat conv=fsync,notrunc 2>/dev/null
	read up idle </proc/uptime
	now=${up%.*}${up#*.}
	[ -z "$was" ] || [ $((now - was)) -lt 5 ] || say "VIREO-STALL $((now - was))"
	[ $((now - beat)) -lt 100 ] || { beat=$now; say "VIREO-BEAT $now"; }
	was=$now
done) &
`

var (
	stallLine = regexp.MustCompile(`VIREO-STALL (\d+)`)
	beatLine  = regexp.MustCompile(`VIREO-BEAT (\d+)`)
)

var _ = Describe("The costs of snapshots", func() {
	It("are measured", func(ctx context.Context) {
		if snapshotReport == "" {
			Skip("only `make bench-snapshot` measures")
		}
		needSnapshots(ctx)
		report := &snapshotFigures{Rounds: snapshotRounds}
		for _, disks := range snapshotDisks {
			report.VMs = append(report.VMs, measureSnapshots(ctx, disks))
		}
		report.publish()
	}, specTimeout(30*time.Minute+time.Duration(snapshotRounds)*10*time.Minute))
})

// measureSnapshots measures the snapshots of a VM: alternately one by Vireo, and one by virsh and VolumeSnapshots.
func measureSnapshots(ctx context.Context, disks int) snapshotVM {
	GinkgoHelper()
	g := startSnapshotGuest(ctx, disks)
	figures := snapshotVM{Disks: disks}
	resting := time.Now()
	g.expectBeats(ctx, resting, guestRest)
	figures.RestStall = g.stall(ctx, resting)
	shell := g.openVirsh(ctx)
	var ours, raw []snapshotTimes
	for range snapshotRounds {
		ours = append(ours, g.measureOurs(ctx))
		raw = append(raw, g.measureRaw(ctx, shell))
	}
	figures.Vireo, figures.Raw = summarizeSnapshots(ours), summarizeSnapshots(raw)
	g.remove(ctx)
	return figures
}

// snapshotGuest is a guest with an agent, whose disks are claims.
type snapshotGuest struct {
	namespace, name string
	class           string
	claims          []string
	instance        *v1.VirtualMachineInstance
}

func startSnapshotGuest(ctx context.Context, disks int) *snapshotGuest {
	GinkgoHelper()
	By(fmt.Sprintf("starting a guest with %d disks", disks))
	g := &snapshotGuest{namespace: newNamespace(ctx), name: "measured"}
	classes := &csi.VolumeSnapshotClassList{}
	Expect(k8s.List(ctx, classes)).To(Succeed())
	g.class = classes.Items[0].Name
	options := []option{withMemory("256Mi"), withUserData(stallReporter)}
	for i := range disks {
		name := fmt.Sprintf("disk%02d", i+1)
		g.claims = append(g.claims, name)
		create(ctx, makeClaim(g.namespace, name, corev1.PersistentVolumeBlock))
		options = append(options, withClaim(name, name))
	}
	create(ctx, makeVM(g.namespace, g.name, options...))
	g.instance = expectReady(ctx, g.namespace, g.name)
	expectAgent(ctx, g.namespace, g.name, bootTimeout)
	expectConsole(ctx, g.namespace, g.name, bootTimeout,
		And(ContainSubstring(guestReady), MatchRegexp(stallLine.String())))
	return g
}

// remove ends the guest before the next one starts.
func (g *snapshotGuest) remove(ctx context.Context) {
	GinkgoHelper()
	Expect(k8s.Delete(ctx, readVM(ctx, g.namespace, g.name))).To(Succeed())
	expectGone(ctx, g.instance)
}

// stall returns the longest time between two writes of the guest since a time, in milliseconds.
func (g *snapshotGuest) stall(ctx context.Context, after time.Time) float64 {
	GinkgoHelper()
	longest := 0
	for _, n := range g.printed(ctx, stallLine, after) {
		longest = max(longest, n)
	}
	return float64(longest) * 10
}

// expectBeats waits until the guest has written for some time since a time, by its own clock: at least from one line of
// beatLine to the next. The first one may have been printed before that time and read after it.
func (g *snapshotGuest) expectBeats(ctx context.Context, after time.Time, d time.Duration) {
	GinkgoHelper()
	Eventually(func(gomega Gomega) {
		beats := g.printed(ctx, beatLine, after)
		gomega.Expect(len(beats)).To(BeNumerically(">", 1), "the guest has printed %v", beats)
		gomega.Expect(beats[len(beats)-1]-beats[0]).To(BeNumerically(">=", d.Milliseconds()/10), "the guest has printed %v",
			beats)
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).Should(Succeed(), "the guest does not write")
}

// printed returns the numbers in the lines of a pattern that the guest has printed since a time.
func (g *snapshotGuest) printed(ctx context.Context, pattern *regexp.Regexp, after time.Time) []int {
	GinkgoHelper()
	since := metav1.NewTime(after.Add(-time.Second))
	stream, err := clientset.CoreV1().Pods(g.namespace).GetLogs(launcherPod(ctx, g.instance).Name, &corev1.PodLogOptions{
		Container: launcherpod.ConsoleLogContainer, Timestamps: true, SinceTime: &since,
	}).Stream(ctx)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = stream.Close() }()
	var numbers []int
	for lines := bufio.NewScanner(stream); lines.Scan(); {
		stamp, text, _ := strings.Cut(lines.Text(), " ")
		when, err := time.Parse(time.RFC3339Nano, stamp)
		found := pattern.FindStringSubmatch(text)
		if err != nil || found == nil || when.Before(after) {
			continue
		}
		n, err := strconv.Atoi(found[1])
		Expect(err).NotTo(HaveOccurred())
		numbers = append(numbers, n)
	}
	return numbers
}

// snapshotTimes are those of one snapshot, in milliseconds.
type snapshotTimes struct {
	// toFrozen is the time from the request until the guest is known to be frozen, frozen from that until it is known to
	// be thawed.
	toFrozen, frozen float64
	// total is the time from the request until a disk can be made of each snapshot.
	total float64
	// stall is the guest's longest one.
	stall float64
}

// measureOurs takes a VirtualMachineSnapshot.
func (g *snapshotGuest) measureOurs(ctx context.Context) snapshotTimes {
	GinkgoHelper()
	stages := g.followFreeze(ctx)
	start := time.Now()
	taken := makeSnapshot(g.namespace, "measured", g.name)
	create(ctx, taken)
	Eventually(func(gomega Gomega) {
		gomega.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(taken), taken)).To(Succeed())
		gomega.Expect(taken.Status).To(
			And(HaveField("ReadyToUse", HaveValue(BeTrue())), HaveField("Phase", snapshotv1beta1.Succeeded)), "%+v",
			taken.Status)
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(snapshotPoll).Should(Succeed())
	total := time.Since(start)
	Expect(taken.Status.Indications).To(ContainElement(snapshotv1beta1.VMSnapshotGuestAgentIndication),
		"the guest was not frozen: %+v", taken.Status)
	Expect(taken.Status.SnapshotVolumes).To(HaveField("IncludedVolumes", ConsistOf(g.claims)))
	var frozen, thawed time.Time
	Eventually(func() bool {
		frozen, thawed = stages.of(taken.UID)
		return frozen.IsZero() || thawed.IsZero()
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
		Should(BeFalse(), "the freeze was not seen in the VMI's status")
	g.expectBeats(ctx, time.Now(), time.Second)
	times := snapshotTimes{
		toFrozen: milliseconds(frozen.Sub(start)), frozen: milliseconds(thawed.Sub(frozen)), total: milliseconds(total),
		stall: g.stall(ctx, start),
	}
	Expect(k8s.Delete(ctx, taken)).To(Succeed())
	g.expectNoSnapshots(ctx)
	return times
}

// measureRaw takes a VolumeSnapshot of each claim while virsh has frozen the guest.
func (g *snapshotGuest) measureRaw(ctx context.Context, shell *virshShell) snapshotTimes {
	GinkgoHelper()
	start := time.Now()
	shell.run(ctx, "domfsfreeze", `Froze (\d+) filesystem`, len(g.claims))
	frozen := time.Now()
	// As kubectl does with a manifest of all of them, but without waiting for each.
	var requests sync.WaitGroup
	for _, claim := range g.claims {
		requests.Go(func() {
			defer GinkgoRecover()
			made := &csi.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "raw-" + claim}}
			made.Spec.Source.PersistentVolumeClaimName, made.Spec.VolumeSnapshotClassName = ptr.To(claim), ptr.To(g.class)
			Expect(k8s.Create(ctx, made)).To(Succeed())
		})
	}
	requests.Wait()
	g.expectAll(ctx, func(s *csi.VolumeSnapshotStatus) bool { return s.CreationTime != nil })
	shell.run(ctx, "domfsthaw", `Thawed (\d+) filesystem`, len(g.claims))
	thawed := time.Now()
	g.expectAll(ctx, func(s *csi.VolumeSnapshotStatus) bool { return ptr.Deref(s.ReadyToUse, false) })
	total := time.Since(start)
	g.expectBeats(ctx, time.Now(), time.Second)
	times := snapshotTimes{
		toFrozen: milliseconds(frozen.Sub(start)), frozen: milliseconds(thawed.Sub(frozen)), total: milliseconds(total),
		stall: g.stall(ctx, start),
	}
	Expect(k8s.DeleteAllOf(ctx, &csi.VolumeSnapshot{}, client.InNamespace(g.namespace))).To(Succeed())
	g.expectNoSnapshots(ctx)
	return times
}

// expectAll waits until there is a VolumeSnapshot of each claim whose status matches.
func (g *snapshotGuest) expectAll(ctx context.Context, matches func(*csi.VolumeSnapshotStatus) bool) {
	GinkgoHelper()
	Eventually(func(gomega Gomega) {
		list, n := &csi.VolumeSnapshotList{}, 0
		gomega.Expect(k8s.List(ctx, list, client.InNamespace(g.namespace))).To(Succeed())
		for i := range list.Items {
			if status := list.Items[i].Status; status != nil && matches(status) {
				n++
			}
		}
		gomega.Expect(n).To(Equal(len(g.claims)))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(snapshotPoll).Should(Succeed())
}

// expectNoSnapshots waits until nothing of a snapshot is left, and the VM is not locked.
func (g *snapshotGuest) expectNoSnapshots(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(gomega Gomega) {
		list := &csi.VolumeSnapshotList{}
		gomega.Expect(k8s.List(ctx, list, client.InNamespace(g.namespace))).To(Succeed())
		gomega.Expect(list.Items).To(BeEmpty())
		gomega.Expect(readVM(ctx, g.namespace, g.name).Status.SnapshotInProgress).To(BeNil())
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}

// freezeStages are when a watch has first shown the stages of freezes. The status itself has whole seconds.
type freezeStages struct {
	mu             sync.Mutex
	frozen, thawed map[string]time.Time
}

// followFreeze watches the VMI until the spec ends.
func (g *snapshotGuest) followFreeze(ctx context.Context) *freezeStages {
	GinkgoHelper()
	watcher, err := client.NewWithWatch(restConfig, client.Options{Scheme: k8s.Scheme()})
	Expect(err).NotTo(HaveOccurred())
	stream, err := watcher.Watch(ctx, &v1.VirtualMachineInstanceList{}, client.InNamespace(g.namespace))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(stream.Stop)
	stages := &freezeStages{frozen: map[string]time.Time{}, thawed: map[string]time.Time{}}
	go func() {
		for event := range stream.ResultChan() {
			if instance, ok := event.Object.(*v1.VirtualMachineInstance); ok {
				stages.see(instance.Status.SnapshotFreezeRecord, time.Now())
			}
		}
	}()
	return stages
}

func (s *freezeStages) see(record *v1.SnapshotFreezeRecord, now time.Time) {
	if record == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[v1.SnapshotFreezeStage]map[string]time.Time{v1.SnapshotFreezeFrozen: s.frozen,
		v1.SnapshotFreezeThawed: s.thawed}[record.Stage]
	if _, known := seen[record.ID]; !known && seen != nil {
		seen[record.ID] = now
	}
}

func (s *freezeStages) of(snapshot types.UID) (frozen, thawed time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frozen[string(snapshot)], s.thawed[string(snapshot)]
}

// virshShell is a virsh in the launcher's Pod that reads commands. Starting one for each command would add to the
// times.
type virshShell struct {
	domain string
	input  io.Writer
	output *gbytes.Buffer
}

func (g *snapshotGuest) openVirsh(ctx context.Context) *virshShell {
	GinkgoHelper()
	request := clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(g.namespace).Name(
		launcherPod(ctx, g.instance).Name).
		SubResource("exec").VersionedParams(&corev1.PodExecOptions{
		Container: launcherpod.ComputeContainer, Stdin: true, Stdout: true, Stderr: true,
		Command: []string{"/usr/bin/virsh", "--connect", "qemu+unix:///session?socket=" + launcherpod.LibvirtSocket},
	}, clientgoscheme.ParameterCodec)
	executor, err := remotecommand.NewSPDYExecutor(restConfig, "POST", request.URL())
	Expect(err).NotTo(HaveOccurred())
	read, write := io.Pipe()
	DeferCleanup(write.Close)
	shell := &virshShell{domain: launcherpod.DomainName(g.namespace, g.name), input: write, output: gbytes.NewBuffer()}
	go func() {
		_ = executor.StreamWithContext(ctx,
			remotecommand.StreamOptions{Stdin: read, Stdout: shell.output, Stderr: shell.output})
		_ = read.Close()
	}()
	Eventually(shell.output).WithContext(ctx).WithTimeout(shortTimeout).Should(gbytes.Say("Type:"))
	return shell
}

// run runs a command for the domain, and waits for a line with a number that is at least a given one.
func (s *virshShell) run(ctx context.Context, command, line string, atLeast int) {
	GinkgoHelper()
	before := len(s.output.Contents())
	_, err := io.WriteString(s.input, command+" "+s.domain+"\n")
	Expect(err).NotTo(HaveOccurred())
	pattern := regexp.MustCompile(line)
	Eventually(func(gomega Gomega) {
		printed := string(s.output.Contents()[before:])
		found := pattern.FindStringSubmatch(printed)
		gomega.Expect(found).NotTo(BeNil(), "virsh %s: %s", command, printed)
		n, err := strconv.Atoi(found[1])
		gomega.Expect(err).NotTo(HaveOccurred())
		gomega.Expect(n).To(BeNumerically(">=", atLeast), printed)
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(5 * time.Millisecond).Should(Succeed())
}

// snapshotSummary are the quantiles of the snapshots of one VM that were taken in one way.
type snapshotSummary struct {
	ToFrozen quantile.Pair `json:"toFrozenMs"`
	Frozen   quantile.Pair `json:"frozenMs"`
	Total    quantile.Pair `json:"totalMs"`
	Stall    quantile.Pair `json:"stallMs"`
}

func summarizeSnapshots(all []snapshotTimes) snapshotSummary {
	return snapshotSummary{
		ToFrozen: pairOf(all, func(t snapshotTimes) float64 { return t.toFrozen }),
		Frozen:   pairOf(all, func(t snapshotTimes) float64 { return t.frozen }),
		Total:    pairOf(all, func(t snapshotTimes) float64 { return t.total }),
		Stall:    pairOf(all, func(t snapshotTimes) float64 { return t.stall }),
	}
}

// snapshotVM are the figures of one VM.
type snapshotVM struct {
	Disks int `json:"disks"`
	// RestStall is the longest time between two writes while nothing happens.
	RestStall float64         `json:"restStallMs"`
	Vireo     snapshotSummary `json:"vireo"`
	Raw       snapshotSummary `json:"virsh"`
}

// snapshotFigures is what `make bench-snapshot` prints and writes.
type snapshotFigures struct {
	Rounds int          `json:"rounds"`
	VMs    []snapshotVM `json:"vms"`
}

// publish writes the JSON, and the table beside it.
func (r *snapshotFigures) publish() {
	GinkgoHelper()
	table := r.table()
	AddReportEntry("snapshots", table)
	text, err := json.MarshalIndent(r, "", "  ")
	Expect(err).NotTo(HaveOccurred())
	Expect(os.MkdirAll(filepath.Dir(snapshotReport), 0o755)).To(Succeed())
	Expect(os.WriteFile(snapshotReport, append(text, '\n'), 0o600)).To(Succeed())
	Expect(os.WriteFile(strings.TrimSuffix(snapshotReport, ".json")+".txt", []byte(table), 0o600)).To(Succeed())
}

// table formats the report for a reader.
func (r *snapshotFigures) table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(format string, values ...any) { _, _ = fmt.Fprintf(w, format+"\n", values...) }
	row("%d snapshots each; ms, p50 / p95\tby\tuntil frozen\tfrozen\ttotal\tguest's longest stall", r.Rounds)
	pair := func(p quantile.Pair) string { return fmt.Sprintf("%.0f / %.0f", p.P50, p.P95) }
	for i := range r.VMs {
		vm := &r.VMs[i]
		row("%d disks\tat rest\t\t\t\t%.0f", vm.Disks, vm.RestStall)
		for _, line := range []struct {
			by string
			of snapshotSummary
		}{{"Vireo", vm.Vireo}, {"virsh and VolumeSnapshots", vm.Raw}} {
			row("\t%s\t%s\t%s\t%s\t%s", line.by, pair(line.of.ToFrozen), pair(line.of.Frozen), pair(line.of.Total),
				pair(line.of.Stall))
		}
	}
	_ = w.Flush()
	return b.String()
}
