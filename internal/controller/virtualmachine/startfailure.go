// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"hash/fnv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

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
