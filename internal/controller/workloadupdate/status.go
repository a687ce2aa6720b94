// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package workloadupdate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/upgradecheck"
)

// Reasons of the condition WorkloadsMigratable.
const (
	ReasonAllMigratable  = "AllMigratable"
	ReasonSomeCannotMove = "SomeNotMigratable"
)

// tellEvery is how often the words of the condition may change while it stays what it is: guests come and go.
const tellEvery = 15 * time.Second

// writeStatus writes what this reconciler tells in the status of the KubeVirt object: the number of outdated guests, and whether all could
// be moved. The rest is the KubeVirt reconciler's, so that the write holds only if nobody else wrote. It returns when there is
// something to tell that has to wait, or 0.
func (s *Scope) writeStatus(ctx context.Context, outdated int, guests []Guest) (time.Duration, error) {
	before := s.KubeVirt.DeepCopy()
	status := &s.KubeVirt.Status
	if ptr.Deref(status.OutdatedVirtualMachineInstanceWorkloads, -1) != outdated {
		status.OutdatedVirtualMachineInstanceWorkloads = ptr.To(outdated)
	}
	again := setCondition(status, judge(s.findings(guests)), s.Now)
	if equality.Semantic.DeepEqual(before.Status, *status) {
		return again, nil
	}
	lock := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := s.Client.Status().Patch(ctx, s.KubeVirt, lock); err != nil {
		return 0, fmt.Errorf("write the state of workloads into the status of KubeVirt %s: %w", before.Name, err)
	}
	return again, nil
}

// judge makes a condition of what was found, or nil while no guest runs.
func judge(findings []upgradecheck.Finding) *v1.KubeVirtCondition {
	if len(findings) == 0 {
		return nil
	}
	stuck := upgradecheck.Stuck(findings)
	if len(stuck) == 0 {
		return &v1.KubeVirtCondition{
			Type: v1.KubeVirtConditionWorkloadsMigratable, Status: corev1.ConditionTrue, Reason: ReasonAllMigratable,
			Message: "Every guest that runs could be moved to another launcher.",
		}
	}
	// Those that are named are the first by name: which ones they are does not change with every guest that comes or goes.
	const named = 5
	text := make([]string, 0, named)
	for _, f := range stuck[:min(named, len(stuck))] {
		text = append(text, fmt.Sprintf("%s/%s (%s: %s)", f.Namespace, f.Name, f.Problems[0].Reason, brief(f.Problems[0].Message)))
	}
	message := "Guests that could not be moved to another launcher while they run: " + strings.Join(text, "; ")
	if more := len(stuck) - len(text); more > 0 {
		message += fmt.Sprintf("; and %d more", more)
	}
	return &v1.KubeVirtCondition{
		Type: v1.KubeVirtConditionWorkloadsMigratable, Status: corev1.ConditionFalse, Reason: ReasonSomeCannotMove,
		Message: message + ". virtctl adm upgrade-check lists all.",
	}
}

// brief keeps a message at a length of which several can be read.
func brief(message string) string {
	const most = 200
	runes := []rune(message)
	if len(runes) <= most {
		return message
	}
	return string(runes[:most]) + "…"
}

// setCondition puts the condition into the status, or takes it away if it is nil. While only its words differ they wait until tellEvery has
// passed since they changed last; then it returns how long.
func setCondition(status *v1.KubeVirtStatus, wanted *v1.KubeVirtCondition, now time.Time) time.Duration {
	i := slices.IndexFunc(status.Conditions, func(c v1.KubeVirtCondition) bool {
		return c.Type == v1.KubeVirtConditionWorkloadsMigratable
	})
	if wanted == nil {
		if i >= 0 {
			status.Conditions = slices.Delete(slices.Clone(status.Conditions), i, i+1)
		}
		return 0
	}
	stamp := metav1.NewTime(now.Truncate(time.Second))
	wanted.LastProbeTime, wanted.LastTransitionTime = stamp, stamp
	if i < 0 {
		status.Conditions = append(slices.Clone(status.Conditions), *wanted)
		return 0
	}
	old := &status.Conditions[i]
	if old.Status == wanted.Status {
		if old.Reason == wanted.Reason && old.Message == wanted.Message {
			return 0
		}
		if wait := old.LastProbeTime.Add(tellEvery).Sub(now); wait > 0 && wait <= tellEvery {
			return wait
		}
		wanted.LastTransitionTime = old.LastTransitionTime
	}
	status.Conditions = slices.Clone(status.Conditions)
	status.Conditions[i] = *wanted
	return 0
}
