// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/quantile"
)

// writes counts API requests that changed something, by the kind that they changed.
type writes struct {
	VM    float64 `json:"vm"`
	VMI   float64 `json:"vmi"`
	Pod   float64 `json:"pod"`
	Event float64 `json:"event"`
	// Revision counts creations of ControllerRevisions.
	Revision float64 `json:"controller_revision"`
}

// component is what one of our processes uses at rest.
type component struct {
	RSSMiB     float64 `json:"rss_mib"`
	CPUPercent float64 `json:"cpu_percent"`
}

// result is what the benchmark found; field names are those of the JSON.
type result struct {
	Count int `json:"count"`
	// VM and Pod are the times from creation to Running of objects that are started one by one.
	VM  quantile.Pair `json:"vm_ms"`
	Pod quantile.Pair `json:"pod_ms"`
	// VMBurst and PodBurst are the same of objects that are created at once.
	VMBurst  quantile.Pair `json:"vm_burst_ms"`
	PodBurst quantile.Pair `json:"pod_burst_ms"`
	// Ratio and ExtraMS compare the medians of one-by-one starts.
	Ratio   float64 `json:"ratio"`
	ExtraMS float64 `json:"extra_ms"`
	// Steps are the medians of the milliseconds from creation until a step was observed.
	Steps []stepTime `json:"steps_ms"`
	// WritesPerVM counts our components' writes from creation to Running, without creations, one by one.
	WritesPerVM writes `json:"writes_per_vm"`
	// AllWritesPerVM counts the writes of all clients, kubelet and scheduler included.
	AllWritesPerVM   writes `json:"all_writes_per_vm"`
	WritesPerVMBurst writes `json:"writes_per_vm_burst"`
	// WritesPerTypedVM counts our components', one by one, for VMs with an instance type and a preference.
	WritesPerTypedVM    writes  `json:"writes_per_typed_vm"`
	ReservedOverheadMiB float64 `json:"reserved_overhead_mib"`
	// ReservedPartsMiB is the part of it that is meant for each process.
	ReservedPartsMiB map[string]float64 `json:"reserved_parts_mib"`
	UsedOverheadMiB  float64            `json:"used_overhead_mib"`
	LauncherPSSMiB   float64            `json:"launcher_pss_mib"`
	LauncherRSSMiB   float64            `json:"launcher_rss_mib"`
	ConsoleLogPSSMiB float64            `json:"console_log_pss_mib"`
	LibvirtdPSSMiB   float64            `json:"libvirtd_pss_mib"`
	QEMUOverheadMiB  float64            `json:"qemu_overhead_mib"`
	// Targets are the limits with which the figures are compared.
	Targets []target `json:"targets"`
	// Components at rest, by name.
	Components map[string]component `json:"components"`
}

// stepTime is when a step of a start was observed.
type stepTime struct {
	Step string  `json:"step"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
}

// target is a limit for a figure, and whether the figure is within it.
type target struct {
	Name   string  `json:"name"`
	AtMost float64 `json:"at_most"`
	Is     float64 `json:"is"`
	Met    bool    `json:"met"`
}

// compare compares the figures with the targets.
func (r *result) compare() []target {
	targets := []target{
		{Name: "ms beyond a bare Pod, one by one", AtMost: 1000, Is: r.ExtraMS},
		{Name: "VM writes", AtMost: 2, Is: r.WritesPerVM.VM},
		{Name: "VMI writes", AtMost: 3, Is: r.WritesPerVM.VMI},
		{Name: "Pod writes", AtMost: 1, Is: r.WritesPerVM.Pod},
		{Name: "VM writes with an instance type and a preference", AtMost: 2, Is: r.WritesPerTypedVM.VM},
		{Name: "reserved MiB beside 1 vCPU / 1 GiB", AtMost: 128, Is: r.ReservedOverheadMiB},
		{Name: "used of that by virt-launcher", AtMost: r.ReservedPartsMiB[podspec.PartLauncher], Is: r.LauncherPSSMiB},
		{Name: "used of that by libvirtd", AtMost: r.ReservedPartsMiB[podspec.PartLibvirtd], Is: r.LibvirtdPSSMiB},
		{Name: "used of that by QEMU", AtMost: r.ReservedPartsMiB[podspec.PartQEMU], Is: r.QEMUOverheadMiB},
		{Name: "used of that by the console's log", AtMost: r.ReservedPartsMiB[podspec.PartConsoleLog], Is: r.ConsoleLogPSSMiB},
		{Name: "resident MiB of virt-launcher", AtMost: 15, Is: r.LauncherRSSMiB},
	}
	for i := range targets {
		targets[i].Met = targets[i].Is <= targets[i].AtMost
	}
	return targets
}

// writeWrites writes the rows with the numbers of writes.
func (r *result) writeWrites(row func(format string, values ...any)) {
	row("writes per VM to Running, beyond creations\tone by one\tat once\tall clients'\twith types")
	for _, kind := range []struct {
		name  string
		count func(writes) float64
	}{
		{"VirtualMachine", func(w writes) float64 { return w.VM }},
		{"VirtualMachineInstance", func(w writes) float64 { return w.VMI }},
		{"Pod", func(w writes) float64 { return w.Pod }},
		{"Event", func(w writes) float64 { return w.Event }},
		{"ControllerRevision (created)", func(w writes) float64 { return w.Revision }},
	} {
		row("  %s\t%.1f\t%.1f\t%.1f\t%.1f", kind.name, kind.count(r.WritesPerVM), kind.count(r.WritesPerVMBurst),
			kind.count(r.AllWritesPerVM), kind.count(r.WritesPerTypedVM))
	}
}

// publish prints the table and writes the JSON, whole or not at all.
func (r *result) publish(path string) error {
	r.ExtraMS = r.VM.P50 - r.Pod.P50
	if r.Pod.P50 > 0 {
		r.Ratio = r.VM.P50 / r.Pod.P50
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	row := func(format string, values ...any) { _, _ = fmt.Fprintf(w, format+"\n", values...) } // Flush returns the error
	row("creation to Running\tp50 ms\tp95 ms")
	row("  %d VMs one by one\t%.0f\t%.0f", r.Count, r.VM.P50, r.VM.P95)
	row("  %d Pods one by one\t%.0f\t%.0f", r.Count, r.Pod.P50, r.Pod.P95)
	row("  %d VMs at once\t%.0f\t%.0f", r.Count, r.VMBurst.P50, r.VMBurst.P95)
	row("  %d Pods at once\t%.0f\t%.0f", r.Count, r.PodBurst.P50, r.PodBurst.P95)
	row("  VM against Pod (one by one)\t%.2f ×\t+%.0f ms", r.Ratio, r.ExtraMS)
	row("where the time goes (since creation)\tp50 ms\tp95 ms")
	for _, s := range r.Steps {
		row("  %s\t%.0f\t%.0f", s.Step, s.P50, s.P95)
	}
	r.writeWrites(row)
	row("memory beside 1 vCPU / 1 GiB\treserved MiB\tused MiB (PSS)")
	row("  virt-launcher (RSS %.1f)\t%.1f\t%.1f", r.LauncherRSSMiB, r.ReservedPartsMiB[podspec.PartLauncher],
		r.LauncherPSSMiB)
	row("  libvirtd\t%.1f\t%.1f", r.ReservedPartsMiB[podspec.PartLibvirtd], r.LibvirtdPSSMiB)
	row("  QEMU without guest memory\t%.1f\t%.1f", r.ReservedPartsMiB[podspec.PartQEMU], r.QEMUOverheadMiB)
	row("  the console's log\t%.1f\t%.1f", r.ReservedPartsMiB[podspec.PartConsoleLog], r.ConsoleLogPSSMiB)
	row("  all\t%.1f\t%.1f", r.ReservedOverheadMiB, r.UsedOverheadMiB)
	row("components at rest\tRSS MiB\tCPU %%")
	for _, name := range []string{"virt-controller", "virt-handler", "virt-broker", "virt-network-broker",
		"virt-device-plugin"} {
		row("  %s\t%.1f\t%.2f", name, r.Components[name].RSSMiB, r.Components[name].CPUPercent)
	}
	row("targets")
	r.Targets = r.compare()
	for _, t := range r.Targets {
		row("  %s\tat most %.1f\t%.1f\t%s", t.Name, t.AtMost, t.Is, map[bool]string{true: "met", false: "missed"}[t.Met])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
