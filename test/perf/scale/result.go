// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

// result is what the benchmark found.
type result struct {
	VMs    int      `json:"vms"`
	Nodes  int      `json:"nodes"`
	Phases []*phase `json:"phases"`
	// Targets are for a fleet of 10,000 VMs.
	Targets []target `json:"targets"`
}

// target is a promise and whether it is kept.
type target struct {
	Name   string  `json:"name"`
	AtMost float64 `json:"atMost"`
	Is     float64 `json:"is"`
	Met    bool    `json:"met"`
}

const (
	// peakTarget is virt-controller's largest resident memory in MiB.
	peakTarget = 800
	// readyTarget is how long virt-controller may take to be ready after a restart, in seconds.
	readyTarget = 60
	// frequent is how many kinds of requests and watches of a phase the table has.
	frequent = 6
	// restartWrites are the writes of a new leader: the Secret with the paths of the webhooks, and the two configurations
	// that name them.
	restartWrites = 3
)

func (r *result) find(name string) *phase {
	at := slices.IndexFunc(r.Phases, func(p *phase) bool { return p.Name == name })
	if at < 0 {
		return &phase{}
	}
	return r.Phases[at]
}

func (p *phase) valueOf(name string) float64 {
	for _, v := range p.Values {
		if v.Name == name {
			return v.Value
		}
	}
	return 0
}

func (r *result) compare() []target {
	peak := 0.0
	for _, p := range r.Phases {
		peak = max(peak, p.Processes[controllerName].PeakMiB)
	}
	ours := func(p *phase) float64 { return float64(p.Writes[controllerName] + p.Writes[agentsName]) }
	restart := r.find(phaseRestart)
	targets := []target{
		{Name: "peak resident MiB of virt-controller", AtMost: peakTarget, Is: peak},
		{Name: "our writes to a steady fleet", AtMost: 0, Is: ours(r.find(phaseSteady))},
		{Name: "seconds until virt-controller is ready after a restart", AtMost: readyTarget, Is: restart.valueOf("ready")},
		{Name: "our writes because of that restart", AtMost: restartWrites, Is: ours(restart)},
		{Name: "our writes because of a changed setting that concerns no VM", AtMost: 10, Is: ours(r.find(phaseConfig))},
	}
	for i := range targets {
		targets[i].Met = targets[i].Is <= targets[i].AtMost
	}
	return targets
}

// publish prints the table and writes the file.
func (r *result) publish(out io.Writer, path string) error {
	r.Targets = r.compare()
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	// Flush returns the error
	row := func(format string, values ...any) { _, _ = fmt.Fprintf(table, format+"\n", values...) }
	row("%d VMs on %d nodes", r.VMs, r.Nodes)
	for _, p := range r.Phases {
		row("%s\t%.0f s", p.Name, p.Seconds)
		for _, v := range p.Values {
			row("  %s\t%.1f %s", v.Name, v.Value, v.Unit)
		}
		row("  process\tCPU s\tpeak MiB\tend MiB\twrites\tper VM\tper s")
		for _, name := range slices.Sorted(maps.Keys(p.Processes)) {
			u, writes := p.Processes[name], float64(p.Writes[name])
			row("  %s\t%.1f\t%.0f\t%.0f\t%.0f\t%.2f\t%.1f", name, u.CPUSeconds, u.PeakMiB, u.EndMiB, writes,
				writes/float64(r.VMs), writes/p.Seconds)
		}
		for _, name := range []string{controllerName, agentsName} {
			for _, kind := range mostFrequent(p.Requests[name]) {
				count := p.Requests[name][kind]
				row("  %s: %s\t%d\t%.2f per VM", name, kind, count, float64(count)/float64(r.VMs))
			}
		}
		for _, resource := range p.frequentWatches() {
			t := p.Watches[resource]
			row("  watches of %s\t%d events\t%.1f MiB", resource, t.Events, t.MiB)
		}
	}
	row("targets for 10,000 VMs")
	for _, t := range r.Targets {
		row("  %s\tat most %.0f\t%.0f\t%s", t.Name, t.AtMost, t.Is, map[bool]string{true: "met", false: "missed"}[t.Met])
	}
	if err := table.Flush(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o600)
}

// mostFrequent returns the most frequent keys.
func mostFrequent(counts map[string]int) []string {
	keys := slices.Sorted(maps.Keys(counts))
	slices.SortStableFunc(keys, func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	return keys[:min(len(keys), frequent)]
}

// frequentWatches returns the resources with the largest traffic.
func (p *phase) frequentWatches() []string {
	keys := slices.Sorted(maps.Keys(p.Watches))
	slices.SortStableFunc(keys, func(a, b string) int { return cmp.Compare(p.Watches[b].MiB, p.Watches[a].MiB) })
	return keys[:min(len(keys), frequent)]
}
