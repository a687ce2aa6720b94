// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/specsupport"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// action is what to do with the instance.
type action int

const (
	noAction action = iota
	create          // create an instance
	remove          // delete the instance
	unhalt          // set the run strategy to Always, and create an instance
)

// decide returns the action that the run strategy and the requests require. If a start is refused or delayed, it sets
// the failure or the requeue time.
func decide(s *Scope) action {
	if s.Failure != nil {
		return noAction
	}
	next := noAction
	switch s.Strategy {
	case v1.RunStrategyAlways:
		next = decideAlways(s)
	case v1.RunStrategyHalted:
		switch {
		case s.VMI != nil:
			next = remove
		case startRequested(s):
			// A start with options, such as paused, is a request. Its options must be kept when the strategy changes. Any other
			// start of the list was made under another strategy, and trimRequests has removed it.
			next = unhalt
		}
	case v1.RunStrategyManual:
		next = decideManual(s)
	case v1.RunStrategyRerunOnFailure:
		next = decideRerun(s)
	case v1.RunStrategyOnce:
		if s.VMI == nil {
			next = create
		}
	default:
		s.Failure = &kit.Failure{
			Reason: specsupport.ReasonNotImplemented,
			Message: "run strategy " + string(s.Strategy) +
				" is not implemented, use Always, Halted, Manual, RerunOnFailure or Once",
		}
	}
	if next == create || next == unhalt {
		if s.beingRestored() {
			s.failRestoring()
			return noAction
		}
		if s.needsRecovery() {
			return noAction
		}
		if s.Failure = unimplemented(s); s.Failure != nil {
			return noAction
		}
		if wait := backoff(s); wait > 0 {
			s.RequeueAfter = outcome.Sooner(s.RequeueAfter, wait)
			return noAction
		}
	}
	return next
}

// unimplemented returns a failure for fields outside of the template that are not implemented: the VM must not start
// without them. Those inside of the template are reported by the instance.
func unimplemented(s *Scope) *kit.Failure {
	refused := specsupport.Refusals(specsupport.UnimplementedInVM(field.NewPath("spec"), &s.VM.Spec))
	if len(refused) == 0 {
		return nil
	}
	return &kit.Failure{Reason: specsupport.ReasonNotImplemented, Message: specsupport.JoinErrors(refused).Error()}
}

func decideAlways(s *Scope) action {
	switch {
	case s.VMI == nil:
		return create
	case s.VMI.IsFinal() || stopRequested(s):
		return remove
	default:
		return noAction
	}
}

func decideManual(s *Scope) action {
	switch {
	case s.VMI == nil && startRequested(s):
		return create
	case s.VMI != nil && (stopRequested(s) || s.VMI.IsFinal() && startRequested(s)):
		return remove
	default:
		return noAction
	}
}

// decideRerun starts again after a failure and not after a success. It records the restart as a request in the status,
// because the instance that failed is deleted.
func decideRerun(s *Scope) action {
	switch {
	case s.VMI == nil:
		switched := s.VM.Status.RunStrategy != v1.RunStrategyRerunOnFailure
		if switched || startRequested(s) {
			return create
		}
		return noAction
	case stopRequested(s):
		return remove
	case s.VMI.Status.Phase == v1.Failed && !startRequested(s) && s.VMI.DeletionTimestamp == nil:
		// The request is written first. The write triggers the reconciliation that deletes the instance.
		s.Status.StateChangeRequests = append(s.Status.StateChangeRequests,
			v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest}.MadeUnder(s.Strategy))
		return noAction
	case s.VMI.IsFinal():
		return remove
	default:
		return noAction
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

// trimRequests removes the requests that a change of the run strategy replaces, and those at the head that are done:
// the stop of an instance that no longer exists, and a start when an instance runs.
func trimRequests(
	requests []v1.VirtualMachineStateChangeRequest, strategy v1.VirtualMachineRunStrategy, vmi *v1.VirtualMachineInstance,
) []v1.VirtualMachineStateChangeRequest {
	requests = slices.DeleteFunc(slices.Clone(requests),
		func(r v1.VirtualMachineStateChangeRequest) bool { return !r.AppliesTo(strategy) })
	for i := range requests {
		if requests[i].Data[v1.RequestDataRunStrategyKey] == string(v1.RunStrategyHalted) {
			// It has set the strategy Always. If that becomes Halted again, the VM was stopped.
			requests[i] = requests[i].MadeUnder(strategy)
		}
	}
	for len(requests) > 0 && isDone(requests[0], vmi) {
		requests = requests[1:]
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

// backoff returns the delay before the next start after failed starts. A start that a user requests is not delayed.
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

// beingRestored reports whether the VM is locked by a restore: its disks, ControllerRevisions and spec are being
// replaced. It neither starts meanwhile nor gets DataVolumes, and the revisions that it does not refer to yet stay.
func (s *Scope) beingRestored() bool { return s.VM.Status.RestoreInProgress != nil }

// failRestoring sets the failure that the VM cannot be started until its restore has ended. The words are those with
// which KubeVirt has refused such a start.
func (s *Scope) failRestoring() {
	s.fail(ReasonFailedCreate, actionStart, fmt.Errorf("Cannot start VM until restore %q completes", *s.VM.Status.RestoreInProgress), createFailed) //nolint:staticcheck // KubeVirt's message
}

// Delay after the n-th failed start in a row: n² times the unit and up to half of that again, at most the cap.
// Source: kubevirt/kubevirt pkg/virt-controller/watch/vm, calculateStartBackoffTime.
const (
	backoffUnit = 10 * time.Second
	backoffCap  = 300 * time.Second
)

// countStartFailure counts the instances in a row that ended without having run. An instance that runs resets the
// count, and so does a strategy that starts nothing by itself.
func countStartFailure(s *Scope) *v1.VirtualMachineStartFailure {
	switch s.Strategy {
	case v1.RunStrategyAlways, v1.RunStrategyRerunOnFailure, v1.RunStrategyOnce:
	default:
		return nil
	}
	known := s.Status.StartFailure
	switch {
	case s.VMI == nil:
		return known
	case vmistatus.HasPassed(&s.VMI.Status, v1.Running):
		return nil
	case !s.VMI.IsFinal():
		return known
	case s.VMI.Status.Phase == v1.Succeeded && s.VMI.DeletionTimestamp != nil:
		return known // It was stopped before it ran, which is no failure.
	case known != nil && known.LastFailedVMIUID == s.VMI.UID:
		return known
	}
	count := 1
	if known != nil {
		count = known.ConsecutiveFailCount + 1
	}
	return &v1.VirtualMachineStartFailure{
		ConsecutiveFailCount: count,
		LastFailedVMIUID:     s.VMI.UID,
		RetryAfterTimestamp:  ptr.To(metav1.NewTime(s.Now.Add(startDelay(count, s.VMI.UID)))),
	}
}

// startDelay returns the delay after the count-th failure. Its jitter spreads VMs that fail together and is derived
// from the instance's UID, so that the delay does not change when it is computed again.
func startDelay(count int, uid types.UID) time.Duration {
	delay := min(time.Duration(count)*time.Duration(count)*backoffUnit, backoffCap)
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid)) // never fails
	const steps = 1000
	jitter := delay / 2 * time.Duration(hash.Sum32()%steps) / steps
	return min(delay+jitter, backoffCap)
}
