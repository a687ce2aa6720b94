// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package datavolume

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/api/cdi"
)

func TestJudge(t *testing.T) {
	condition := func(kind cdi.DataVolumeConditionType, status corev1.ConditionStatus, reason string) []cdi.DataVolumeCondition {
		return []cdi.DataVolumeCondition{{Type: kind, Status: status, Reason: reason, Message: "because"}}
	}
	for name, tc := range map[string]struct {
		phase                          cdi.DataVolumePhase
		conditions                     []cdi.DataVolumeCondition
		usable, consumer, provisioning bool
		problem, quota                 string
	}{
		"new":                  {provisioning: true},
		"filled":               {phase: cdi.DataVolumeSucceeded, usable: true},
		"waits for the Pod":    {phase: cdi.DataVolumePendingPopulation, usable: true},
		"being filled":         {phase: "ImportInProgress", provisioning: true},
		"waits for a consumer": {phase: cdi.DataVolumeWaitForFirstConsumer, consumer: true},
		"bound, and waits for a consumer": {
			phase: cdi.DataVolumeWaitForFirstConsumer, conditions: condition(cdi.DataVolumeBound, corev1.ConditionTrue, "Bound"),
			consumer: true, provisioning: true,
		},
		"failed": {phase: cdi.DataVolumeFailed, provisioning: true, problem: "Failed phase"},
		"retries after an error": {
			phase: "ImportInProgress", conditions: condition(cdi.DataVolumeRunning, corev1.ConditionFalse, "Error"),
			provisioning: true, problem: "importer has stopped running due to an error: because",
		},
		"cannot pull its image": {
			phase: "ImportScheduled", conditions: condition(cdi.DataVolumeRunning, corev1.ConditionFalse, "ImagePullFailed"),
			provisioning: true, problem: "because",
		},
		"completed": {
			phase: cdi.DataVolumeSucceeded, conditions: condition(cdi.DataVolumeRunning, corev1.ConditionFalse, "Completed"), usable: true,
		},
		"exceeds a quota": {
			phase: cdi.DataVolumePending, conditions: condition(cdi.DataVolumeBound, corev1.ConditionUnknown, "ErrExceededQuota"),
			provisioning: true, quota: "because",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dv := &cdi.DataVolume{Status: cdi.DataVolumeStatus{Phase: tc.phase, Conditions: tc.conditions}}
			if got := Usable(dv); got != tc.usable {
				t.Errorf("usable: %t", got)
			}
			if got := WaitsForConsumer(dv); got != tc.consumer {
				t.Errorf("waits for a consumer: %t", got)
			}
			if got := Provisioning(dv); got != tc.provisioning {
				t.Errorf("provisioning: %t", got)
			}
			if got := Problem(dv); !strings.Contains(got, tc.problem) || got != "" && tc.problem == "" {
				t.Errorf("problem: %q", got)
			}
			if got := ExceedsQuota(dv); !strings.Contains(got, tc.quota) || got != "" && tc.quota == "" {
				t.Errorf("quota: %q", got)
			}
		})
	}
}
