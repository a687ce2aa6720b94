// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package phase

import (
	"errors"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/vireo-project/vireo/internal/limits"
	"github.com/vireo-project/vireo/internal/outcome"
)

// firstAttemptDelay and maxAttemptDelay are the delays before an act that has failed is tried again. The act itself may
// cause events of libvirt, which trigger reconciliations: without a delay, a domain that cannot start would be started
// without a pause.
const firstAttemptDelay, maxAttemptDelay = time.Second, 5 * time.Minute

// Acts are the acts of a Pod that have failed, by their name, as long as neither the VMI's spec nor the Pod changes.
// The zero value has none.
type Acts struct {
	generation int64
	pod        *corev1.Pod
	failed     map[string]*failedAct
}

// failedAct is an act that has failed.
type failedAct struct {
	// delays are those before the next attempts, and next is when the next one is due.
	delays wait.Backoff
	next   time.Time
	// failure is that of the last attempt.
	failure outcome.Retry
}

// failedActs returns the acts that have failed with the current spec and Pod.
func (s *Scope) failedActs() map[string]*failedAct {
	known, generation := s.Acts, int64(0)
	if vmi := s.KnownVMI(); vmi != nil {
		generation = vmi.Generation
	}
	if known.pod == nil || known.generation != generation || !isSameForActs(known.pod, s.Pod) {
		*known = Acts{generation: generation, pod: s.Pod, failed: map[string]*failedAct{}}
	}
	return known.failed
}

// isSameForActs reports whether a Pod has not changed in anything that an act may depend on. Conditions and the states
// of containers change by themselves, and with the guest.
func isSameForActs(a, b *corev1.Pod) bool {
	if a == b {
		return true
	}
	resources := func(pod *corev1.Pod) map[string]*corev1.ResourceRequirements {
		all := map[string]*corev1.ResourceRequirements{}
		for i := range pod.Status.ContainerStatuses {
			all[pod.Status.ContainerStatuses[i].Name] = pod.Status.ContainerStatuses[i].Resources
		}
		return all
	}
	return maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) &&
		equality.Semantic.DeepEqual(a.Spec, b.Spec) && equality.Semantic.DeepEqual(a.Status.PodIPs, b.Status.PodIPs) &&
		equality.Semantic.DeepEqual(resources(a), resources(b))
}

// AwaitAttempt returns the failure of an act as long as its next attempt is not due, and nil otherwise.
func (s *Scope) AwaitAttempt(act string) error {
	last := s.failedActs()[act]
	if last == nil || !s.Now.Before(last.next) {
		return nil
	}
	failure := last.failure
	failure.After, failure.Verbosity = last.next.Sub(s.Now), 4
	return &failure
}

// RequeueForAttempt makes the next reconciliation start when the next attempt of an act is due, if it has failed.
func (s *Scope) RequeueForAttempt(act string) {
	if last := s.failedActs()[act]; last != nil {
		s.RequeueAfter(last.next.Sub(s.Now))
	}
}

// Attempted notes how an attempt of an act has ended, and returns its error. A failure becomes a Retry with the reason
// of its condition and a delay that doubles.
func (s *Scope) Attempted(act, reason string, err error) error {
	if err == nil {
		delete(s.failedActs(), act)
		return nil
	}
	var terminal *outcome.Terminal
	var retry *outcome.Retry
	if !IsFailure(err) || outcome.IsConflict(err) || isBrokerAway(err) || errors.As(err, &terminal) ||
		errors.As(err, &retry) {
		return err
	}
	last := s.failedActs()[act]
	if last == nil {
		last = &failedAct{delays: limits.ExponentialBackoff(firstAttemptDelay, maxAttemptDelay)}
		s.failedActs()[act] = last
	}
	delay := last.delays.Step()
	last.next, last.failure = s.Clock.Now().Add(delay), outcome.Retry{Reason: reason, After: delay, Err: err}
	failure := last.failure
	return &failure
}

// Attempt runs an act, unless it has failed and its next attempt is not due.
func (s *Scope) Attempt(act, reason string, run func() error) error {
	if err := s.AwaitAttempt(act); err != nil {
		return err
	}
	return s.Attempted(act, reason, run())
}
