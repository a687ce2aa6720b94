// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

const (
	// freezeRunsEnv is the number of freezes in which processes are killed, and freezeSeedEnv the seed of the delays.
	freezeRunsEnv, freezeSeedEnv = "VIREO_FREEZE_RUNS", "VIREO_FREEZE_SEED"
	// freezeReportEnv names the file for the results.
	freezeReportEnv = "VIREO_FREEZE_REPORT"

	// freezeLimit is the time until a freeze's deadline. It suffices for two restarts of the agent on a busy machine.
	freezeLimit = 10 * time.Second
	// freezeAllowance is what the thaw itself may take, which the agent requests at the deadline.
	freezeAllowance = 3 * time.Second
)

// afterKill is what virt-controller has written, or what the next agent reads of it, after the kill.
type afterKill string

const (
	// controllerGone: virt-controller was killed, too, and nothing ends the freeze.
	controllerGone afterKill = "nothing: virt-controller is gone"
	// controllerGaveUp: it has canceled the freeze after the kill.
	controllerGaveUp afterKill = "cancel"
	// controllerTook: it has released the guest before the kill.
	controllerTook afterKill = "release, before the kill"
	// readsNoIntent: the next agent reads a VMI from before the request.
	readsNoIntent afterKill = "no intent: a stale read"
)

var afterKills = []afterKill{controllerGone, controllerGaveUp, controllerTook, readsNoIntent}

// killedFreeze is a freeze in which the agent is killed once or twice.
type killedFreeze struct {
	ID    string    `json:"id"`
	After afterKill `json:"after"`
	// Delay is the time of the kill after the request, or after the release.
	Delay time.Duration `json:"delayNs"`
	// Pauses are the times until the next agents start, one for each kill.
	Pauses []time.Duration `json:"pausesNs"`
	// Found are the record and the guest after the first kill.
	Found string `json:"found"`
	// Thawed reports whether the guest was thawed in time.
	Thawed bool `json:"thawed"`
	// Margin is the time from when the guest was last seen frozen to the deadline; nil if it was not frozen after the
	// kill.
	Margin *time.Duration `json:"marginNs,omitempty"`

	deadline time.Time
}

// freezeKills kills agents while they freeze a guest.
type freezeKills struct {
	*linux
	podsDir string
	// toFrozen and toThawed are how long an agent takes that is not killed.
	toFrozen, toThawed time.Duration
	runs               []*killedFreeze
}

// isThawedAfterKills is the spec of a guest whose agent is killed while it freezes or thaws it.
func isThawedAfterKills(g *linux) {
	It("is thawed by the deadline of a freeze in which the agent and its broker are killed", extended(1),
		func(ctx context.Context) {
			seed := uint64(numberFrom(freezeSeedEnv, int(time.Now().Unix())))
			k := &freezeKills{linux: g, podsDir: g.pod.podsDir()}
			k.measure(ctx)
			for i := range numberFrom(freezeRunsEnv, len(afterKills)) {
				run := k.plan(rand.New(rand.NewPCG(seed, uint64(i))), i)
				k.runs = append(k.runs, run)
				if k.execute(ctx, run); !run.Thawed {
					break
				}
			}
			k.publish(seed)
			Expect(k.runs[len(k.runs)-1].Thawed).To(BeTrue(), "the guest was frozen beyond the deadline with seed %d: %+v", seed,
				k.runs[len(k.runs)-1])
		}, SpecTimeout(time.Hour))
}

func numberFrom(variable string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		return n
	}
	return otherwise
}

// measure measures a freeze without kills, so that the kills hit all of its steps.
func (k *freezeKills) measure(ctx context.Context) {
	GinkgoHelper()
	id, deadline := "measured", time.Now().Add(time.Minute).Truncate(time.Second)
	agent := k.startAgent(v1.VirtualMachineInstanceStatus{})
	defer agent.kill()
	start := time.Now()
	agent.order(freeze.Intent{ID: id, Deadline: deadline})
	agent.expectStage(ctx, id, v1.SnapshotFreezeFrozen)
	k.toFrozen = time.Since(start)
	start = time.Now()
	agent.order(freeze.Intent{ID: id, Deadline: deadline, End: freeze.Release})
	agent.expectStage(ctx, id, v1.SnapshotFreezeThawed)
	k.toThawed = time.Since(start)
	Expect(agent.status().SnapshotFreezeRecord.Kept).To(BeTrue())
}

func (k *freezeKills) plan(random *rand.Rand, i int) *killedFreeze {
	run := &killedFreeze{ID: fmt.Sprintf("run-%d", i), After: afterKills[i%len(afterKills)]}
	span := k.toFrozen
	if run.After == controllerTook {
		span = k.toThawed
	}
	run.Delay = time.Duration(random.Float64() * 1.3 * float64(span))
	for range 1 + random.IntN(2) {
		run.Pauses = append(run.Pauses, time.Duration(random.IntN(1000))*time.Millisecond)
	}
	return run
}

// execute requests a freeze, kills the agent, and watches the guest until the freeze has ended.
func (k *freezeKills) execute(ctx context.Context, run *killedFreeze) {
	GinkgoHelper()
	agent := k.startAgent(v1.VirtualMachineInstanceStatus{})
	run.deadline = time.Now().Add(freezeLimit).Truncate(time.Second)
	intent := freeze.Intent{ID: run.ID, Deadline: run.deadline}
	agent.order(intent)
	if run.After == controllerTook {
		agent.expectStage(ctx, run.ID, v1.SnapshotFreezeFrozen)
		intent.End = freeze.Release
		agent.order(intent)
	}
	time.Sleep(run.Delay)
	agent.kill()
	k.look(ctx, run)

	status := agent.status()
	switch run.After {
	case controllerGaveUp:
		intent.End = freeze.Cancel
	case readsNoIntent:
		status = v1.VirtualMachineInstanceStatus{}
	}
	if run.After != readsNoIntent {
		status.SnapshotFreeze = intent.Status()
	}
	for i, pause := range run.Pauses {
		time.Sleep(pause)
		agent = k.startAgent(status)
		if i < len(run.Pauses)-1 {
			time.Sleep(run.Delay)
			agent.kill()
		}
	}
	defer agent.kill()
	if k.watch(ctx, run); run.Thawed {
		Expect(k.run("echo " + run.ID + " >/mnt/data/killed && sync && echo fi''ne")).To(ContainSubstring("fine"))
	}
}

// look notes the record in the domain's metadata, and whether the guest is frozen.
func (k *freezeKills) look(ctx context.Context, run *killedFreeze) {
	GinkgoHelper()
	record, err := k.conn.SnapshotFreeze(ctx, k.domain)
	Expect(err).NotTo(HaveOccurred())
	run.Found = "no record"
	if record != nil && record.ID == run.ID {
		run.Found = string(record.Stage.Name())
	}
	run.Found += map[bool]string{true: ", guest frozen", false: ", guest thawed"}[k.isFrozen(ctx, run)]
}

// isFrozen queries the guest agent, and notes when the guest was last seen frozen.
func (k *freezeKills) isFrozen(ctx context.Context, run *killedFreeze) bool {
	GinkgoHelper()
	frozen, err := k.conn.Frozen(ctx, k.domain)
	Expect(err).NotTo(HaveOccurred())
	if frozen {
		margin := time.Until(run.deadline)
		run.Margin = &margin
	}
	return frozen
}

// watch queries the guest agent until the freeze has ended, and sets whether that was in time.
func (k *freezeKills) watch(ctx context.Context, run *killedFreeze) {
	GinkgoHelper()
	for time.Now().Before(run.deadline.Add(freezeAllowance)) {
		frozen := k.isFrozen(ctx, run)
		record, err := k.conn.SnapshotFreeze(ctx, k.domain)
		Expect(err).NotTo(HaveOccurred())
		// An agent that finds no record of an open intent freezes the guest once more, until the deadline.
		none := run.After != controllerGone && (record == nil || record.ID != run.ID)
		if !frozen && (none || record != nil && record.ID == run.ID && record.Ended()) {
			run.Thawed = true
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// killableAgent is an agent in a process of its own. It knows one VMI, whose status it is given and reports.
type killableAgent struct {
	process *exec.Cmd
	orders  *json.Encoder
	mu      sync.Mutex
	last    v1.VirtualMachineInstanceStatus
}

func (k *freezeKills) startAgent(status v1.VirtualMachineInstanceStatus) *killableAgent {
	GinkgoHelper()
	setup, err := json.Marshal(freezingAgent{
		PodsDir: k.podsDir, RelayDir: GinkgoT().TempDir(), PID: k.pod.daemon.PID(), Domain: k.domain, Status: status,
	})
	Expect(err).NotTo(HaveOccurred())
	a := &killableAgent{process: exec.Command("/proc/self/exe"), last: status}
	a.process.Args = []string{freezingAgentName, string(setup)}
	a.process.Stderr = GinkgoWriter
	orders, err := a.process.StdinPipe()
	Expect(err).NotTo(HaveOccurred())
	reports, err := a.process.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(a.process.Start()).To(Succeed())
	DeferCleanup(a.kill)
	a.orders = json.NewEncoder(orders)
	decoder := json.NewDecoder(reports)
	// The first report says that the agent is connected.
	Expect(decoder.Decode(&v1.VirtualMachineInstanceStatus{})).To(Succeed())
	go func() {
		for {
			status := v1.VirtualMachineInstanceStatus{}
			if decoder.Decode(&status) != nil {
				return
			}
			a.mu.Lock()
			a.last = status
			a.mu.Unlock()
		}
	}()
	return a
}

// order gives the agent an intent of virt-controller.
func (a *killableAgent) order(intent freeze.Intent) {
	GinkgoHelper()
	Expect(a.orders.Encode(intent.Status())).To(Succeed())
}

// status returns the last status that the agent has reported.
func (a *killableAgent) status() v1.VirtualMachineInstanceStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	return *a.last.DeepCopy()
}

func (a *killableAgent) expectStage(ctx context.Context, id string, stage v1.SnapshotFreezeStage) {
	GinkgoHelper()
	Eventually(func() *v1.SnapshotFreezeRecord { return a.status().SnapshotFreezeRecord }).WithContext(ctx).WithTimeout(
		time.Minute).
		WithPolling(5 * time.Millisecond).Should(And(HaveField("ID", id), HaveField("Stage", stage)))
}

// kill sends SIGKILL.
func (a *killableAgent) kill() {
	if a.process.ProcessState == nil {
		_ = a.process.Process.Kill()
		_ = a.process.Wait()
	}
}

// publish adds the table to the report, and writes it and all runs to the file of freezeReportEnv.
func (k *freezeKills) publish(seed uint64) {
	GinkgoHelper()
	table := k.table(seed)
	AddReportEntry("killed freezes", table)
	file := os.Getenv(freezeReportEnv)
	if file == "" {
		return
	}
	text, err := json.MarshalIndent(map[string]any{"seed": seed, "runs": k.runs}, "", "  ")
	Expect(err).NotTo(HaveOccurred())
	Expect(os.MkdirAll(filepath.Dir(file), 0o755)).To(Succeed())
	Expect(os.WriteFile(file, append(text, '\n'), 0o600)).To(Succeed())
	Expect(os.WriteFile(strings.TrimSuffix(file, ".json")+".txt", []byte(table), 0o600)).To(Succeed())
}

// table formats the runs by what was found after the kill and what the next agent reads.
func (k *freezeKills) table(seed uint64) string {
	type key struct {
		found string
		after afterKill
	}
	groups := map[key][]*killedFreeze{}
	var keys []key
	thawed := 0
	for _, run := range k.runs {
		of := key{run.Found, run.After}
		if groups[of] == nil {
			keys = append(keys, of)
		}
		groups[of] = append(groups[of], run)
		if run.Thawed {
			thawed++
		}
	}
	slices.SortFunc(keys, func(a, b key) int { return strings.Compare(a.found+string(a.after), b.found+string(b.after)) })
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(format string, values ...any) { _, _ = fmt.Fprintf(w, format+"\n", values...) }
	row("after the kill\tof virt-controller\truns\tthawed in time\tlast seen frozen, ms from the deadline")
	for _, of := range keys {
		in, latest := 0, "-"
		var least *time.Duration
		for _, run := range groups[of] {
			if run.Thawed {
				in++
			}
			if run.Margin != nil && (least == nil || *run.Margin < *least) {
				least = run.Margin
				latest = strconv.FormatInt(-run.Margin.Milliseconds(), 10)
			}
		}
		row("%s\t%s\t%d\t%d\t%s", of.found, of.after, len(groups[of]), in, latest)
	}
	row("%d of %d guests were thawed in time: at most %s after the deadline, at which the agent requests it; seed %d",
		thawed, len(k.runs), freezeAllowance, seed)
	_ = w.Flush()
	return b.String()
}
