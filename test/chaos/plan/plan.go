// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package plan determines the faults of a run of the chaos test, and when they are injected. Both depend on the run's
// seed only.
package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Phase is a step of a migration. docs/adr/0023-migration-protocol.md describes the protocol.
type Phase int

// The phases in their order, and how each is observed.
const (
	// Requested: the migration object was created.
	Requested Phase = iota
	// Scheduling: the target's launcher Pod exists, but does not run yet.
	Scheduling
	// Prepared: the target's agent has recorded that it is prepared.
	Prepared
	// Started: the source's agent has recorded the start.
	Started
	// Transferring: the source's QEMU sends memory.
	Transferring
	// Switching: the source's QEMU has stopped its CPUs.
	Switching
	// Releasing: the source's QEMU has ended, so the source's agent may release the guest.
	Releasing
	// Running: the target's QEMU has started its CPUs.
	Running
	// Owned: status.nodeName is the target's.
	Owned
	phases
)

// window is the time after the observation within which the fault is injected.
var window = [phases]time.Duration{
	Requested: 300 * time.Millisecond, Scheduling: 1500 * time.Millisecond, Prepared: 100 * time.Millisecond,
	Started:      300 * time.Millisecond,
	Transferring: 1200 * time.Millisecond, Switching: 80 * time.Millisecond, Releasing: 30 * time.Millisecond,
	Running: 60 * time.Millisecond, Owned: time.Second,
}

var phaseNames = [phases]string{"requested", "scheduling", "prepared", "started", "transferring", "switching",
	"releasing", "running", "owned"}

// String is the name of the phase in tables and files.
func (p Phase) String() string { return phaseNames[p] }

// Phases returns all phases in their order.
func Phases() []Phase {
	all := make([]Phase, phases)
	for i := range all {
		all[i] = Phase(i)
	}
	return all
}

// Fault is a kind of fault.
type Fault string

// The faults: SIGKILL to a process, or a cut connection that is restored later.
const (
	SourceAgent    Fault = "kill source virt-handler"
	TargetAgent    Fault = "kill target virt-handler"
	SourceBroker   Fault = "kill source virt-broker"
	TargetBroker   Fault = "kill target virt-broker"
	SourceNetwork  Fault = "kill source virt-network-broker"
	TargetNetwork  Fault = "kill target virt-network-broker"
	SourceLauncher Fault = "kill source virt-launcher"
	TargetLauncher Fault = "kill target virt-launcher"
	SourceLibvirtd Fault = "kill source libvirtd"
	TargetLibvirtd Fault = "kill target libvirtd"
	SourceQEMU     Fault = "kill source QEMU"
	TargetQEMU     Fault = "kill target QEMU"
	Controller     Fault = "kill virt-controller"
	APIServer      Fault = "kill kube-apiserver"
	SourceKubelet  Fault = "kill source kubelet"
	TargetKubelet  Fault = "kill target kubelet"
	CutAgents      Fault = "cut agent to agent"
	CutQEMUs       Fault = "cut QEMU to QEMU"
	CutSource      Fault = "cut source to API"
	CutTarget      Fault = "cut target to API"
)

// span is the range of phases in which the process or connection of a fault exists, or is about to.
type span struct {
	fault       Fault
	first, last Phase
}

var faults = []span{
	{SourceAgent, Requested, Owned}, {TargetAgent, Requested, Owned},
	{SourceBroker, Requested, Owned}, {TargetBroker, Requested, Owned},
	{SourceNetwork, Requested, Owned}, {TargetNetwork, Requested, Owned},
	{SourceLauncher, Requested, Releasing}, {TargetLauncher, Scheduling, Owned},
	{SourceLibvirtd, Requested, Releasing}, {TargetLibvirtd, Scheduling, Owned},
	{SourceQEMU, Requested, Switching}, {TargetQEMU, Started, Owned},
	{Controller, Requested, Owned}, {APIServer, Requested, Owned},
	{SourceKubelet, Requested, Owned}, {TargetKubelet, Requested, Owned},
	{CutAgents, Requested, Owned}, {CutQEMUs, Prepared, Running},
	{CutSource, Requested, Owned}, {CutTarget, Requested, Owned},
}

// Faults returns all faults in the order of the table.
func Faults() []Fault {
	all := make([]Fault, 0, len(faults))
	for _, s := range faults {
		all = append(all, s.fault)
	}
	return all
}

// Injection is a fault with its time.
type Injection struct {
	Fault Fault
	Phase Phase
	// Delay is the time from the beginning of the phase to the fault.
	Delay time.Duration
	// Lasts is the time until the connection is restored, or the process is started if Kubernetes does not restart it.
	Lasts time.Duration
}

// String formats the injection.
func (i Injection) String() string {
	return fmt.Sprintf("%s at %s+%dms for %.1fs", i.Fault, i.Phase, i.Delay.Milliseconds(), i.Lasts.Seconds())
}

// Run has the faults of one run.
type Run struct {
	Seed uint64
	// Injections are one or two, in the order of their phases.
	Injections []Injection
}

type cell struct {
	fault Fault
	phase Phase
}

// cells are all possible pairs of a fault and a phase, in a fixed shuffled order: len(cells) runs with consecutive
// seeds contain each of them once.
var cells = func() []cell {
	var all []cell
	for _, s := range faults {
		for p := s.first; p <= s.last; p++ {
			all = append(all, cell{s.fault, p})
		}
	}
	rand.New(rand.NewPCG(0, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}()

// Cells is the number of pairs of a fault and a phase.
func Cells() int { return len(cells) }

const (
	shortest, longest = 500 * time.Millisecond, 6 * time.Second
	// One of oneIn runs has two faults.
	oneIn = 4
)

// Of returns the plan of the run with a seed.
func Of(seed uint64) Run {
	random := rand.New(rand.NewPCG(seed, seed))
	first := cells[seed%uint64(len(cells))]
	run := Run{Seed: seed, Injections: []Injection{inject(random, first)}}
	if random.IntN(oneIn) == 0 {
		run.Injections = append(run.Injections, inject(random, cells[random.IntN(len(cells))]))
		slices.SortStableFunc(run.Injections, func(a, b Injection) int { return int(a.Phase) - int(b.Phase) })
	}
	return run
}

func inject(random *rand.Rand, c cell) Injection {
	return Injection{
		Fault: c.fault, Phase: c.phase,
		Delay: time.Duration(random.Int64N(int64(window[c.phase]))).Round(time.Millisecond),
		Lasts: (shortest + time.Duration(random.Int64N(int64(longest-shortest)))).Round(100 * time.Millisecond),
	}
}
