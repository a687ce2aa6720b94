// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/chaos/plan"
)

const (
	// phaseBound is how long a phase is waited for; one that a migration does not reach is left out.
	phaseBound = 45 * time.Second
	// lookInterval is the pause between two looks at a run that ends.
	lookInterval = 250 * time.Millisecond
)

// run makes one migration and judges it.
func (h *harness) run(ctx context.Context, p plan.Run) *result {
	r := &result{Seed: p.Seed, Outcome: unclear}
	if err := h.settled(ctx); err != nil {
		r.fail("before the run: %v", err)
		return r
	}
	s, err := h.scene(ctx)
	if err != nil {
		r.fail("before the run: %v", err)
		return r
	}
	boots := h.chain.Boots()
	h.seen.begin(s.sourcePod, s.target)
	began := time.Now()
	migration := &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.namespace, GenerateName: fmt.Sprintf("chaos-%d-", p.Seed)},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: guestName},
	}
	if err := h.api.Create(ctx, migration); err != nil {
		r.fail("ask for the migration: %v", err)
		return r
	}
	h.seen.note("seed %d: %s, %s to %s", p.Seed, migration.Name, s.source, s.target)
	h.seen.created(migration.UID)
	r.Source, r.Target, r.migration = s.source, s.target, migration.Name
	h.breakThings(ctx, p, s, r)
	h.judge(ctx, r, &facts{source: s.source, target: s.target, before: s.instance}, boots)
	r.Seconds = time.Since(began).Seconds()
	h.keepJournal(r)
	if len(r.Failures) > 0 && ctx.Err() == nil {
		h.keepEvidence(ctx, r)
	}
	_ = h.api.Delete(ctx, migration)
	return r
}

// breakThings has the faults of a run happen, each at its phase, and returns when all is mended.
func (h *harness) breakThings(ctx context.Context, p plan.Run, s *scene, r *result) {
	var mending sync.WaitGroup
	defer mending.Wait()
	for _, injection := range p.Injections {
		h.seen.note("next: %s", injection)
		done := incident{Fault: string(injection.Fault), Phase: injection.Phase.String(), DelayMS: injection.Delay.Milliseconds()}
		err := h.awaitPhase(ctx, injection, r.migration)
		if err == nil {
			err = h.strike(ctx, injection.Fault, s)
		}
		done.Happened = err == nil
		if err != nil && ctx.Err() == nil {
			done.Why = err.Error()
			h.seen.note("%s does not happen: %v", injection.Fault, err)
			if !errors.Is(err, errAbsent) && !errors.Is(err, errNotReached) {
				r.fail("%s: %v", injection.Fault, err)
			}
		}
		r.Incidents = append(r.Incidents, done)
		mending.Go(func() {
			_ = pause(ctx, injection.Lasts)
			// To its end, also when the run is interrupted.
			if err := h.damage.mend(context.WithoutCancel(ctx), h); err != nil && ctx.Err() == nil {
				r.fail("mend what was broken: %v", err)
			}
		})
	}
}

// errNotReached is the end of the wait for a phase that a migration does not come to.
var errNotReached = errors.New("the migration does not get there")

// awaitPhase returns at the moment of an injection.
func (h *harness) awaitPhase(ctx context.Context, injection plan.Injection, migration string) error {
	reached, deadline := h.seen.wait(injection.Phase), time.After(phaseBound)
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-reached:
			return pause(ctx, injection.Delay)
		case <-look.C:
			if phase, err := h.phaseOf(ctx, migration); err == nil && (phase == v1.MigrationFailed || phase == v1.MigrationSucceeded) {
				return errNotReached
			}
		case <-deadline:
			return errNotReached
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (h *harness) phaseOf(ctx context.Context, migration string) (v1.VirtualMachineInstanceMigrationPhase, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	object := &v1.VirtualMachineInstanceMigration{}
	err := h.api.Get(ctx, client.ObjectKey{Namespace: h.namespace, Name: migration}, object)
	return object.Status.Phase, err
}

// judge looks until all is well, or the bound has passed.
func (h *harness) judge(ctx context.Context, r *result, f *facts, boots int) {
	records, until, noted := h.chain.Length(), time.Now().Add(h.bound), ""
	for ctx.Err() == nil {
		last := !time.Now().Before(until)
		missing, err := h.look(ctx, f, records, boots, last, r)
		if now := strings.Join(missing, "; "); now != noted {
			h.seen.note("missing: %s", now)
			noted = now
		}
		if err == nil && len(missing) == 0 {
			r.Outcome, r.Phase, r.Reason = f.outcome(), string(f.phase), f.refused
			for _, wrong := range f.contradictions(r.killedGuest()) {
				r.fail("%s", wrong)
			}
			return
		}
		if !last && !r.broken {
			_ = pause(ctx, lookInterval)
			continue
		}
		r.Phase = string(f.phase)
		if err == nil && f.excused() && !r.broken {
			r.Outcome, r.Reason = waits, f.reason
			return
		}
		r.fail("%s after all was mended: %s", h.bound, strings.Join(missing, "; "))
		if err != nil {
			r.fail("look: %v", err)
		}
		return
	}
}

// look takes in what there is now. The last look leaves nothing out.
func (h *harness) look(ctx context.Context, f *facts, records, boots int, last bool, r *result) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	traced := h.seen.proceedings()
	for _, failure := range traced.failures {
		r.fail("%s", failure)
		r.broken = true
	}
	if err := h.readLog(); err != nil {
		r.fail("the guest's log: %v", err)
		r.broken = true
	}
	f.executing, f.writer, r.DowntimeMS = traced.executing, traced.writer, float64(traced.downtime.Microseconds())/1000
	f.records, f.boots = h.chain.Length()-records, h.chain.Boots()-boots
	f.qemus, f.pods = nil, nil
	nodes := map[types.UID]string{}
	for _, pod := range h.seen.everyPod() {
		nodes[pod.UID] = pod.Spec.NodeName
		if isAlive(pod) {
			f.pods = append(f.pods, pod.Name)
		}
		if h.seen.takesPart(pod) && refused(pod) {
			f.refused = fmt.Sprintf("the kubelet refused Pod %s when it was started again: %s", pod.Name, pod.Status.Reason)
		}
	}
	slices.Sort(f.pods)
	for process, pod := range traced.pods {
		if pod != "" && hostExists(process) {
			f.qemus = append(f.qemus, qemu{process, nodes[pod]})
		}
	}
	if err := h.lookAtObjects(ctx, f, r); err != nil {
		return nil, err
	}
	var err error
	if f.unsettled, err = h.unsettled(ctx); err != nil {
		return nil, err
	}
	// That takes the longest, and says nothing as long as something is on its way.
	f.leftovers = nil
	if missing := f.missing(); len(missing) > 0 && !last {
		return missing, nil
	}
	if f.leftovers, err = h.leftovers(ctx); err != nil {
		return nil, err
	}
	return f.missing(), nil
}

// refused reports whether a kubelet did not admit a Pod: one that was started again looks at all Pods as if they were new, and ends those
// for which it does not see enough devices yet, also if they run (its AdmissionFailureReason and OutOf… reasons).
func refused(pod *corev1.Pod) bool {
	return strings.HasPrefix(pod.Status.Reason, "OutOf") || pod.Status.Reason == "UnexpectedAdmissionError"
}

func (h *harness) lookAtObjects(ctx context.Context, f *facts, r *result) (err error) {
	f.phase, err = h.phaseOf(ctx, r.migration)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if f.gone = err != nil; f.gone {
		f.phase = h.seen.lastPhase()
	}
	instance := &v1.VirtualMachineInstance{}
	if err := h.api.Get(ctx, client.ObjectKey{Namespace: h.namespace, Name: guestName}, instance); client.IgnoreNotFound(err) != nil {
		return err
	}
	f.instance, f.status, f.owner = instance.UID, instance.Status.Phase, instance.Status.NodeName
	f.ready, f.reason = false, ""
	for _, c := range instance.Status.Conditions {
		if c.Type == v1.VirtualMachineInstanceReady {
			f.ready = c.Status == "True"
		}
		if c.Status != "True" && c.Message != "" {
			f.reason += fmt.Sprintf("%s: %s ", c.Type, c.Message)
		}
	}
	return nil
}
