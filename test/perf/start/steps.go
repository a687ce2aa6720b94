// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// smallGuestMiB is the memory of the guests whose start is timed.
const smallGuestMiB = 128

// The states that end a start, as sightings name them.
const (
	podRunning = "running"
	vmRunning  = "vmi Running"
)

// startSteps are the states of a start in the order in which a VM passes them.
var startSteps = []string{"vmi created", "pod created", "pod scheduled", "pod running", "vmi Scheduled", vmRunning, "vmi Ready"}

// warmUp starts and removes one of each, so that images are in page caches and watches are warm.
func (b *bench) warmUp(ctx context.Context, _ *result) error {
	vm, pod := b.vm("warm-up", smallGuestMiB), b.pod("warm-up-pod")
	if _, err := b.start(ctx, vmRunning, false, vm); err != nil {
		return err
	}
	if _, err := b.start(ctx, podRunning, false, pod); err != nil {
		return err
	}
	return b.remove(ctx, vm, pod)
}

func (b *bench) pods(prefix string) []client.Object {
	var all []client.Object
	for i := range b.count {
		all = append(all, b.pod(fmt.Sprintf("%s%d", prefix, i)))
	}
	return all
}

func (b *bench) vms(prefix string) []client.Object {
	var all []client.Object
	for i := range b.count {
		all = append(all, b.vm(fmt.Sprintf("%s%d", prefix, i), smallGuestMiB))
	}
	return all
}

func (b *bench) podsOneByOne(ctx context.Context, r *result) error {
	pods := b.pods("pod-one")
	s, err := b.start(ctx, podRunning, false, pods...)
	if err != nil {
		return err
	}
	r.Pod = quantilesOf(s.durations())
	return b.remove(ctx, pods...)
}

func (b *bench) podsAtOnce(ctx context.Context, r *result) error {
	pods := b.pods("pod-all")
	s, err := b.start(ctx, podRunning, true, pods...)
	if err != nil {
		return err
	}
	r.PodBurst = quantilesOf(s.durations())
	return b.remove(ctx, pods...)
}

func (b *bench) vmsOneByOne(ctx context.Context, r *result) error {
	offset, err := auditOffset(b.auditLog)
	if err != nil {
		return err
	}
	vms := b.vms("vm-one")
	s, err := b.start(ctx, vmRunning, false, vms...)
	if err != nil {
		return err
	}
	r.VM = quantilesOf(s.durations())
	r.Steps = b.steps(s)
	changes, err := b.settledChanges(offset)
	if err != nil {
		return err
	}
	r.WritesPerVM = perVM(changes, b.untilReady(s), change.ours)
	r.AllWritesPerVM = perVM(changes, b.untilReady(s), func(change) bool { return true })
	return b.remove(ctx, vms...)
}

func (b *bench) vmsAtOnce(ctx context.Context, r *result) error {
	offset, err := auditOffset(b.auditLog)
	if err != nil {
		return err
	}
	vms := b.vms("vm-all")
	s, err := b.start(ctx, vmRunning, true, vms...)
	if err != nil {
		return err
	}
	r.VMBurst = quantilesOf(s.durations())
	changes, err := b.settledChanges(offset)
	if err != nil {
		return err
	}
	r.WritesPerVMBurst = perVM(changes, b.untilReady(s), change.ours)
	return b.remove(ctx, vms...)
}

// settledChanges reads the audit log after the last writes of a start had time to reach it.
func (b *bench) settledChanges(offset int64) ([]change, error) {
	time.Sleep(settle)
	return changesSince(b.auditLog, offset, b.namespace)
}

// untilReady counts every write of a start, also those that follow Running within the time to settle: a write
// that comes a moment later is not cheaper.
func (b *bench) untilReady(s started) map[string]time.Time {
	until := map[string]time.Time{}
	for name, running := range s.running {
		until[name] = running.Add(settle)
	}
	return until
}

// steps summarizes when each state was seen after creation.
func (b *bench) steps(s started) []stepTime {
	var all []stepTime
	for _, step := range startSteps {
		var sample []time.Duration
		for name, created := range s.created {
			if when, ok, _ := b.log.at(name, step); ok {
				sample = append(sample, when.Sub(created))
			}
		}
		q := quantilesOf(sample)
		all = append(all, stepTime{Step: step, P50: q.P50, P95: q.P95})
	}
	return all
}
