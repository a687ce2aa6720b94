// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/faults"
	"github.com/vireo-project/vireo/internal/fieldsupport"
)

// action is what is to be done with the instance.
type action int

const (
	leave  action = iota
	create        // make an instance
	remove        // delete the instance
	unhalt        // set the run strategy to Always, and make an instance
)

// decide is what the run strategy and the requests want. It changes the scope only where it explains why nothing
// happens.
func decide(s *Scope) action {
	if s.Failure != nil {
		return leave
	}
	wanted := leave
	switch s.Strategy {
	case v1.RunStrategyAlways:
		wanted = decideAlways(s)
	case v1.RunStrategyHalted:
		switch {
		case s.VMI != nil:
			wanted = remove
		case startRequested(s):
			// A start with options, such as paused, comes as a request, and the options must outlive the change of the strategy.
			wanted = unhalt
		}
	case v1.RunStrategyManual:
		wanted = decideManual(s)
	case v1.RunStrategyRerunOnFailure:
		wanted = decideRerun(s)
	case v1.RunStrategyOnce:
		if s.VMI == nil {
			wanted = create
		}
	default:
		s.Failure = &Failure{
			Reason:  fieldsupport.ReasonNotImplemented,
			Message: "run strategy " + string(s.Strategy) + " is not implemented, use Always, Halted, Manual, RerunOnFailure or Once",
		}
	}
	if wanted == create || wanted == unhalt {
		if s.needsRecovery() {
			return leave
		}
		if s.Failure = unimplemented(s); s.Failure != nil {
			return leave
		}
		if wait := backoff(s); wait > 0 {
			s.RequeueAfter = wait
			return leave
		}
	}
	return wanted
}

// unimplemented is what the VM asks for outside of its template that nothing implements: an instance without it would be
// another machine. What is in the template, the instance itself says.
func unimplemented(s *Scope) *Failure {
	refused := fieldsupport.Refusals(fieldsupport.InVMOnly(field.NewPath("spec"), &s.VM.Spec))
	if len(refused) == 0 {
		return nil
	}
	return &Failure{Reason: fieldsupport.ReasonNotImplemented, Message: faults.Join(refused).Error()}
}

func decideAlways(s *Scope) action {
	switch {
	case s.VMI == nil:
		return create
	case s.VMI.IsFinal() || stopRequested(s):
		return remove
	default:
		return leave
	}
}

func decideManual(s *Scope) action {
	switch {
	case s.VMI == nil && startRequested(s):
		return create
	case s.VMI != nil && (stopRequested(s) || s.VMI.IsFinal() && startRequested(s)):
		return remove
	default:
		return leave
	}
}

// decideRerun starts again after a failure and stays off after a success. That it must start again is kept as a
// request in the status, so that it is not forgotten with the instance that failed.
func decideRerun(s *Scope) action {
	switch {
	case s.VMI == nil:
		switched := s.VM.Status.RunStrategy != v1.RunStrategyRerunOnFailure
		if switched || startRequested(s) {
			return create
		}
		return leave
	case stopRequested(s):
		return remove
	case s.VMI.Status.Phase == v1.Failed && !startRequested(s) && s.VMI.DeletionTimestamp == nil:
		// The request is written first. The next reconciliation, which the write brings about, deletes.
		s.Status.StateChangeRequests = append(s.Status.StateChangeRequests,
			v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest})
		return leave
	case s.VMI.IsFinal():
		return remove
	default:
		return leave
	}
}

func startRequested(s *Scope) bool {
	requests := s.Status.StateChangeRequests
	return len(requests) > 0 && requests[0].Action == v1.StartRequest
}

func stopRequested(s *Scope) bool {
	requests := s.Status.StateChangeRequests
	return len(requests) > 0 && requests[0].Action == v1.StopRequest && s.VMI != nil &&
		requests[0].UID != nil && *requests[0].UID == s.VMI.UID
}

// trimRequests drops the requests at the head that are done: a stop of an instance that is not the one there, a start
// when an instance lives.
func trimRequests(
	requests []v1.VirtualMachineStateChangeRequest, vmi *v1.VirtualMachineInstance,
) []v1.VirtualMachineStateChangeRequest {
	for len(requests) > 0 && isDone(requests[0], vmi) {
		requests = slices.Clone(requests[1:])
	}
	return requests
}

func isDone(request v1.VirtualMachineStateChangeRequest, vmi *v1.VirtualMachineInstance) bool {
	switch request.Action {
	case v1.StopRequest:
		return vmi == nil || request.UID == nil || *request.UID != vmi.UID
	case v1.StartRequest:
		return vmi != nil && !vmi.IsFinal() && vmi.DeletionTimestamp == nil
	default:
		return true
	}
}

// backoff is how long to wait before the next start, after starts that failed. Whoever asks for a start gets it.
func backoff(s *Scope) time.Duration {
	failure := s.Status.StartFailure
	if failure == nil || failure.RetryAfterTimestamp == nil {
		return 0
	}
	if startRequested(s) && s.Strategy != v1.RunStrategyRerunOnFailure {
		return 0
	}
	return failure.RetryAfterTimestamp.Sub(s.Now)
}
