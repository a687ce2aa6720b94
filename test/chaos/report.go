// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/vireo-project/vireo/test/chaos/plan"
	"github.com/vireo-project/vireo/test/quantile"
)

// incident is a planned fault of a run.
type incident struct {
	Fault   string `json:"fault"`
	Phase   string `json:"phase"`
	DelayMS int64  `json:"delay_ms"`
	// Happened is false if the migration did not reach the phase, or there was no process to kill; Why is the cause.
	Happened bool   `json:"happened"`
	Why      string `json:"why,omitempty"`
}

// result is the result of one run.
type result struct {
	Seed      uint64     `json:"seed"`
	Source    string     `json:"source"`
	Target    string     `json:"target"`
	Incidents []incident `json:"incidents"`
	// Outcome is migrated, stayed, restarted, waits or unclear; Reason is why the guest waits or was restarted.
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"`
	// Phase is the phase of the migration at the end.
	Phase string `json:"phase"`
	// Seconds are from the creation of the migration until all checks passed or the time was up.
	Seconds float64 `json:"seconds"`
	// DowntimeMS is the time from the stop of the source's CPUs to the start of the target's, 0 if the guest did not
	// migrate.
	DowntimeMS float64  `json:"downtime_ms,omitempty"`
	Failures   []string `json:"failures,omitempty"`
	// Evidence is the directory with the logs and objects of a failed run.
	Evidence string `json:"evidence,omitempty"`

	mu sync.Mutex
	// migration is the name of the object; broken is set by a violation that cannot be repaired by waiting.
	migration string
	broken    bool
}

func (r *result) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Failures = append(r.Failures, fmt.Sprintf(format, args...))
}

// killers are the faults that end the guest, each from the given phase on: the launcher exits with libvirtd, and QEMU
// is killed with the launcher. The guest may be on the target from the transfer on.
var killers = map[plan.Fault]plan.Phase{
	plan.SourceLauncher: plan.Requested, plan.SourceLibvirtd: plan.Requested, plan.SourceQEMU: plan.Requested,
	plan.TargetLauncher: plan.Transferring, plan.TargetLibvirtd: plan.Transferring, plan.TargetQEMU: plan.Transferring,
}

// killedGuest reports whether a process was killed without which the guest cannot run.
func (r *result) killedGuest() bool {
	return slices.ContainsFunc(r.Incidents, func(i incident) bool {
		from, kills := killers[plan.Fault(i.Fault)]
		return kills && i.Happened && i.Phase != "" && phaseIndex(i.Phase) >= int(from)
	})
}

// restartedKubelets returns the nodes whose kubelets were killed.
func (r *result) restartedKubelets() []string {
	nodes := map[plan.Fault]string{plan.SourceKubelet: r.Source, plan.TargetKubelet: r.Target}
	var restarted []string
	for _, i := range r.Incidents {
		if node := nodes[plan.Fault(i.Fault)]; node != "" && i.Happened {
			restarted = append(restarted, node)
		}
	}
	return restarted
}

func phaseIndex(name string) int {
	return slices.IndexFunc(plan.Phases(), func(p plan.Phase) bool { return p.String() == name })
}

// line formats the run.
func (r *result) line() string {
	faults := make([]string, 0, len(r.Incidents))
	for _, i := range r.Incidents {
		text := fmt.Sprintf("%s at %s+%dms", i.Fault, i.Phase, i.DelayMS)
		if !i.Happened {
			text += " (not: " + i.Why + ")"
		}
		faults = append(faults, text)
	}
	text := fmt.Sprintf("seed %d  %s  →  %s, %s, %.1fs", r.Seed, strings.Join(faults, ", "), r.Outcome,
		cmp.Or(r.Phase, "no phase"), r.Seconds)
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	for _, failure := range r.Failures {
		text += "\n      FAILED: " + failure
	}
	if r.Evidence != "" {
		text += "\n      see " + r.Evidence
	}
	return text
}

// report has the results of all runs.
type report struct {
	Seed    uint64    `json:"seed"`
	Started time.Time `json:"started"`
	// Cells is how many pairs of a fault and a phase there are.
	Cells   int       `json:"cells"`
	Runs    []*result `json:"runs"`
	Summary []summary `json:"summary"`
	// Aborted is why the test ended before the last run.
	Aborted string `json:"aborted,omitempty"`
}

// summary counts the outcomes of the runs with a fault at a phase.
type summary struct {
	Fault     string `json:"fault"`
	Phase     string `json:"phase"`
	Runs      int    `json:"runs"`
	Migrated  int    `json:"migrated"`
	Stayed    int    `json:"stayed"`
	Restarted int    `json:"restarted"`
	Waits     int    `json:"waits"`
	Failed    int    `json:"failed"`
	// P50 and P95 are percentiles of the durations.
	P50     float64 `json:"seconds_p50"`
	P95     float64 `json:"seconds_p95"`
	seconds []float64
}

func (r *report) add(one *result) { r.Runs = append(r.Runs, one) }

func (r *report) failed() []*result {
	return slices.DeleteFunc(slices.Clone(r.Runs), func(one *result) bool { return len(one.Failures) == 0 })
}

// verdict returns an error if any run failed.
func (r *report) verdict() error {
	if failed := len(r.failed()); failed > 0 || r.Aborted != "" {
		return fmt.Errorf("%w: %d of %d runs failed", errFailed, failed, len(r.Runs))
	}
	return nil
}

// gather summarizes the runs by a key of their incidents. A run with two incidents counts for both.
func (r *report) gather(key func(incident) (fault, phase string)) map[[2]string]*summary {
	all := map[[2]string]*summary{}
	for _, run := range r.Runs {
		counted := map[[2]string]bool{}
		for _, i := range run.Incidents {
			fault, phase := key(i)
			at := [2]string{fault, phase}
			if !i.Happened || counted[at] {
				continue
			}
			counted[at] = true
			if all[at] == nil {
				all[at] = &summary{Fault: fault, Phase: phase}
			}
			all[at].count(run)
		}
	}
	return all
}

func (s *summary) count(run *result) {
	s.Runs++
	switch run.Outcome {
	case migrated:
		s.Migrated++
	case stayed:
		s.Stayed++
	case restarted:
		s.Restarted++
	case waits:
		s.Waits++
	}
	if len(run.Failures) > 0 {
		s.Failed++
	}
	s.seconds = append(s.seconds, run.Seconds)
	s.P50, s.P95 = quantile.Nearest(s.seconds, 0.50), quantile.Nearest(s.seconds, 0.95)
}

// cell is a summary as counts with the first letter of the outcome.
func (s *summary) cell() string {
	if s == nil {
		return "·"
	}
	var text strings.Builder
	for _, part := range []struct {
		n      int
		letter string
	}{{s.Migrated, "m"}, {s.Stayed, "s"}, {s.Restarted, "r"}, {s.Waits, "w"}, {s.Failed, "F"}} {
		if part.n > 0 {
			fmt.Fprintf(&text, "%d%s", part.n, part.letter)
		}
	}
	return text.String()
}

// table writes the outcomes by fault and phase.
func (r *report) table(out io.Writer) error {
	cells := r.gather(func(i incident) (string, string) { return i.Fault, i.Phase })
	rows := r.gather(func(i incident) (string, string) { return i.Fault, "" })
	columns := r.gather(func(i incident) (string, string) { return "", i.Phase })
	all := &summary{}
	for _, run := range r.Runs {
		all.count(run)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "fault\t%s\truns\tfailed\tp50 s\tp95 s\n", eachPhase(plan.Phase.String))
	line := func(name string, total *summary, cell func(plan.Phase) *summary) {
		cells := eachPhase(func(p plan.Phase) string { return cell(p).cell() })
		_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.1f\t%.1f\n", name, cells, total.Runs, total.Failed, total.P50, total.P95)
	}
	for _, f := range plan.Faults() {
		if total := rows[[2]string{string(f)}]; total != nil {
			line(string(f), total, func(p plan.Phase) *summary { return cells[[2]string{string(f), p.String()}] })
		}
	}
	line("all", all, func(p plan.Phase) *summary { return columns[[2]string{"", p.String()}] })
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out,
		"m migrated %d, s stayed %d, r restarted %d, w waits with a reason %d, F failed %d; %d of %d pairs of a fault and a phase occurred. A run with two faults counts in two rows.\n",
		all.Migrated, all.Stayed, all.Restarted, all.Waits, all.Failed, len(cells), r.Cells)
	return err
}

func eachPhase(text func(plan.Phase) string) string {
	fields := make([]string, 0, len(plan.Phases()))
	for _, p := range plan.Phases() {
		fields = append(fields, text(p))
	}
	return strings.Join(fields, "\t")
}

// publish writes the table, and the JSON file at path.
func (r *report) publish(out io.Writer, path string) error {
	for _, s := range r.gather(func(i incident) (string, string) { return i.Fault, i.Phase }) {
		r.Summary = append(r.Summary, *s)
	}
	slices.SortFunc(r.Summary, func(a, b summary) int {
		return cmp.Or(cmp.Compare(a.Fault, b.Fault), cmp.Compare(phaseIndex(a.Phase), phaseIndex(b.Phase)))
	})
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	err = errors.Join(r.table(out), os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, append(text, '\n'), 0o644))
	for _, one := range r.failed() {
		_, _ = fmt.Fprintln(out, one.line())
	}
	return err
}
