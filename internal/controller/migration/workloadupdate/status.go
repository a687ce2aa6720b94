// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package workloadupdate

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/migration/upgradecheck"
	"github.com/vireo-project/vireo/internal/outcome"
)

// Reasons of the condition WorkloadsMigratable.
const (
	ReasonAllMigratable  = "AllMigratable"
	ReasonSomeCannotMove = "SomeNotMigratable"
)

// messageInterval limits how often the condition's message may change while its status stays the same. It changes as
// guests start and stop.
const messageInterval = 15 * time.Second

// A check of all guests that took longer than shortCheck rests for checkRest times as long. It renders a launcher Pod
// for each guest, and is due after each change of a guest: thousands of guests that start would keep a CPU busy with
// it.
const (
	shortCheck = 100 * time.Millisecond
	checkRest  = 9
)

// Check is the result of the last check of all guests.
type Check struct {
	condition *v1.KubeVirtCondition
	// due is when it may be repeated.
	due time.Time
}

// check returns the condition for the guests: that of the last check while the check rests, with the time until its
// end.
func (s *Scope) check(guests []Guest) (*v1.KubeVirtCondition, time.Duration) {
	if rest := s.LastCheck.due.Sub(s.Now); rest > 0 {
		return s.LastCheck.condition.DeepCopy(), rest
	}
	begin := time.Now()
	s.LastCheck.condition = condition(s.findings(guests))
	if took := time.Since(begin); took > shortCheck {
		s.LastCheck.due = s.Now.Add(checkRest * took)
	}
	return s.LastCheck.condition.DeepCopy(), 0
}

// writeStatus writes this reconciler's fields of the KubeVirt object's status: the number of outdated guests, and
// whether all could be migrated. The KubeVirt reconciler owns the rest, so the patch has an optimistic lock. It returns
// the delay after which a delayed message may be written or the check be repeated, or 0.
func (s *Scope) writeStatus(ctx context.Context, outdated int, guests []Guest) (time.Duration, error) {
	wanted, rest := s.check(guests)
	requeueAfter := rest
	err := kit.WriteStatus(ctx, s.Client, &s.KubeVirt, func(kv *v1.KubeVirt) {
		if ptr.Deref(kv.Status.OutdatedVirtualMachineInstanceWorkloads, -1) != outdated {
			kv.Status.OutdatedVirtualMachineInstanceWorkloads = ptr.To(outdated)
		}
		requeueAfter = outcome.Sooner(setCondition(&kv.Status, wanted, s.Now), rest)
	})
	return requeueAfter, err
}

// condition returns the condition for the findings, or nil while no guest runs.
func condition(findings []upgradecheck.Finding) *v1.KubeVirtCondition {
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
	// The first guests by name are listed, so that the message does not change with every guest.
	const named = 5
	text := make([]string, 0, named)
	for _, f := range stuck[:min(named, len(stuck))] {
		text = append(text, fmt.Sprintf("%s/%s (%s: %s)", f.Namespace, f.Name, f.Problems[0].Reason,
			brief(f.Problems[0].Message)))
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

// brief shortens a message.
func brief(message string) string {
	const most = 200
	runes := []rune(message)
	if len(runes) <= most {
		return message
	}
	return string(runes[:most]) + "…"
}

// setCondition sets the condition, or removes it if it is nil. If only the message differs, it delays the change until
// messageInterval has passed since the last change, and returns the remaining delay.
func setCondition(status *v1.KubeVirtStatus, wanted *v1.KubeVirtCondition, now time.Time) time.Duration {
	if wanted == nil {
		conditions.Remove(&status.Conditions, v1.KubeVirtConditionWorkloadsMigratable)
		return 0
	}
	stamp := metav1.NewTime(now.Truncate(time.Second))
	wanted.LastProbeTime, wanted.LastTransitionTime = stamp, stamp
	old := conditions.Find(status.Conditions, wanted.Type)
	if old != nil && old.Status == wanted.Status && (old.Reason != wanted.Reason || old.Message != wanted.Message) {
		if wait := old.LastProbeTime.Add(messageInterval).Sub(now); wait > 0 && wait <= messageInterval {
			return wait
		}
	}
	// The next change of the message alone is delayed from now on.
	conditions.SetProbed(&status.Conditions, *wanted)
	return 0
}
