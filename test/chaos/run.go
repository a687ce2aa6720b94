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
	// phaseBound is how long to wait for a phase. After that, the fault is skipped.
	phaseBound = 45 * time.Second
	// checkInterval is the pause between two checks at the end of a run.
	checkInterval = 250 * time.Millisecond
)

// run executes one migration with its faults, and checks the result.
func (h *harness) run(ctx context.Context, p plan.Run) *result {
	r := &result{Seed: p.Seed, Outcome: unclear}
	if err := h.awaitReady(ctx); err != nil {
		r.fail("before the run: %v", err)
		return r
	}
	s, err := h.participants(ctx)
	if err != nil {
		r.fail("before the run: %v", err)
		return r
	}
	boots := h.chain.Boots()
	h.observer.begin(s.sourcePod, s.target)
	began := time.Now()
	migration := &v1.VirtualMachineInstanceMigration{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.namespace, GenerateName: fmt.Sprintf("chaos-%d-", p.Seed)},
		Spec:       v1.VirtualMachineInstanceMigrationSpec{VMIName: guestName},
	}
	if err := h.api.Create(ctx, migration); err != nil {
		r.fail("create the migration: %v", err)
		return r
	}
	h.observer.note("seed %d: %s, %s to %s", p.Seed, migration.Name, s.source, s.target)
	h.observer.created(migration.UID)
	r.Source, r.Target, r.migration = s.source, s.target, migration.Name
	h.injectAll(ctx, p, s, r)
	h.checkUntilBound(ctx, r, &facts{source: s.source, target: s.target, before: s.instance}, boots)
	r.Seconds = time.Since(began).Seconds()
	h.keepJournal(r)
	if len(r.Failures) > 0 && ctx.Err() == nil {
		h.keepEvidence(ctx, r)
	}
	_ = h.api.Delete(ctx, migration)
	return r
}

// injectAll injects the faults of a run, each at its phase, and returns when all are repaired.
func (h *harness) injectAll(ctx context.Context, p plan.Run, s *participants, r *result) {
	var repairs sync.WaitGroup
	defer repairs.Wait()
	for _, injection := range p.Injections {
		h.observer.note("next: %s", injection)
		done := incident{Fault: string(injection.Fault), Phase: injection.Phase.String(),
			DelayMS: injection.Delay.Milliseconds()}
		err := h.awaitPhase(ctx, injection, r.migration)
		if err == nil {
			err = h.inject(ctx, injection.Fault, s)
		}
		done.Happened = err == nil
		if err != nil && ctx.Err() == nil {
			done.Why = err.Error()
			h.observer.note("%s was not injected: %v", injection.Fault, err)
			if !errors.Is(err, errAbsent) && !errors.Is(err, errNotReached) {
				r.fail("%s: %v", injection.Fault, err)
			}
		}
		r.Incidents = append(r.Incidents, done)
		repairs.Go(func() {
			_ = pause(ctx, injection.Lasts)
			// The repair is finished also when the run is interrupted.
			if err := h.damage.repair(context.WithoutCancel(ctx), h); err != nil && ctx.Err() == nil {
				r.fail("repair the fault: %v", err)
			}
		})
	}
}

// errNotReached means that a migration ended before a phase, or took too long to reach it.
var errNotReached = errors.New("the migration did not reach the phase")

// awaitPhase waits for the phase of an injection and then for its delay.
func (h *harness) awaitPhase(ctx context.Context, injection plan.Injection, migration string) error {
	reached, deadline := h.observer.wait(injection.Phase), time.After(phaseBound)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-reached:
			return pause(ctx, injection.Delay)
		case <-ticker.C:
			if phase, err := h.phaseOf(ctx, migration); err == nil &&
				(phase == v1.MigrationFailed || phase == v1.MigrationSucceeded) {
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

// checkUntilBound repeats the checks until they all pass, or the bound has passed.
func (h *harness) checkUntilBound(ctx context.Context, r *result, f *facts, boots int) {
	records, until, noted := h.chain.Length(), time.Now().Add(h.bound), ""
	for ctx.Err() == nil {
		last := !time.Now().Before(until)
		missing, err := h.check(ctx, f, records, boots, last, r)
		if now := strings.Join(missing, "; "); now != noted {
			h.observer.note("missing: %s", now)
			noted = now
		}
		if err == nil && len(missing) == 0 {
			r.Outcome, r.Phase, r.Reason = f.outcome(), string(f.phase), f.refused
			for _, wrong := range f.contradictions(r.killedGuest(), r.restartedKubelets()) {
				r.fail("%s", wrong)
			}
			return
		}
		if !last && !r.broken {
			_ = pause(ctx, checkInterval)
			continue
		}
		r.Phase = string(f.phase)
		if err == nil && f.excused() && !r.broken {
			r.Outcome, r.Reason = waits, f.reason
			return
		}
		r.fail("%s after the repair of all faults: %s", h.bound, strings.Join(missing, "; "))
		if err != nil {
			r.fail("check: %v", err)
		}
		return
	}
}

// check updates the facts and returns what is missing. The slow check for leftovers is skipped while something else is
// missing, except the last time.
func (h *harness) check(ctx context.Context, f *facts, records, boots int, last bool, r *result) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	traced := h.observer.traced()
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
	for _, pod := range h.observer.launcherPods() {
		nodes[pod.UID] = pod.Spec.NodeName
		if isAlive(pod) {
			f.pods = append(f.pods, pod.Name)
		}
		if h.observer.takesPart(pod) && refused(pod) {
			f.refusedBy = pod.Spec.NodeName
			f.refused = fmt.Sprintf("the kubelet of %s refused Pod %s: %s: %s", f.refusedBy, pod.Name, pod.Status.Reason,
				pod.Status.Message)
		}
	}
	slices.Sort(f.pods)
	for process, pod := range traced.pods {
		if pod != "" && hostExists(process) {
			f.qemus = append(f.qemus, qemu{process, nodes[pod]})
		}
	}
	if err := h.readObjects(ctx, f, r); err != nil {
		return nil, err
	}
	var err error
	if f.notReady, err = h.notReady(ctx); err != nil {
		return nil, err
	}
	// This is slow, and there may be leftovers as long as the migration is not finished.
	f.leftovers = nil
	if missing := f.missing(); len(missing) > 0 && !last {
		return missing, nil
	}
	if f.leftovers, err = h.leftovers(ctx); err != nil {
		return nil, err
	}
	return f.missing(), nil
}

// refused reports whether a kubelet did not admit a Pod: after a restart it admits all Pods again, and ends those for
// which it has not detected enough devices yet, also if they run (its AdmissionFailureReason and OutOf… reasons).
func refused(pod *corev1.Pod) bool {
	return strings.HasPrefix(pod.Status.Reason, "OutOf") || pod.Status.Reason == "UnexpectedAdmissionError"
}

func (h *harness) readObjects(ctx context.Context, f *facts, r *result) (err error) {
	f.phase, err = h.phaseOf(ctx, r.migration)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if f.gone = err != nil; f.gone {
		f.phase = h.observer.lastPhase()
	}
	instance := &v1.VirtualMachineInstance{}
	if err := h.api.Get(ctx, client.ObjectKey{Namespace: h.namespace, Name: guestName},
		instance); client.IgnoreNotFound(err) != nil {
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
