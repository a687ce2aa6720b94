// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package datavolume

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
)

func TestJudge(t *testing.T) {
	condition := func(kind cdi.DataVolumeConditionType, status corev1.ConditionStatus,
		reason string) []cdi.DataVolumeCondition {
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
			phase: cdi.DataVolumeSucceeded, conditions: condition(cdi.DataVolumeRunning, corev1.ConditionFalse, "Completed"),
			usable: true,
		},
		"exceeds a quota": {
			phase:        cdi.DataVolumePending,
			conditions:   condition(cdi.DataVolumeBound, corev1.ConditionUnknown, "ErrExceededQuota"),
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

// imported is a Reader of one DataVolume, or of an error.
type imported struct {
	phase cdi.DataVolumePhase
	err   error
}

func (i imported) Get(_ context.Context, key client.ObjectKey) (*cdi.DataVolume, error) {
	dv := &cdi.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	dv.Status.Phase = i.phase
	return dv, i.err
}

func TestFilled(t *testing.T) {
	dv := cdi.GroupVersion.WithKind("DataVolume")
	unreadable := errors.New("unreadable")
	for name, tc := range map[string]struct {
		owner   string
		reader  imported
		want    bool
		problem string
		err     error
	}{
		"no owner":             {reader: imported{err: unreadable}, want: true},
		"another owner":        {owner: "VirtualMachine", reader: imported{err: unreadable}, want: true},
		"a filled one":         {owner: dv.Kind, reader: imported{phase: cdi.DataVolumeSucceeded}, want: true},
		"one that is filled":   {owner: dv.Kind, reader: imported{phase: "ImportInProgress"}},
		"one that is gone":     {owner: dv.Kind, reader: imported{err: apierrors.NewNotFound(cdi.GroupVersion.WithResource("datavolumes").GroupResource(), "root")}},
		"no importer":          {owner: dv.Kind, reader: imported{err: ErrNotInstalled}, problem: "install the Containerized Data Importer"},
		"one that is not read": {owner: dv.Kind, reader: imported{err: unreadable}, err: unreadable},
	} {
		t.Run(name, func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "root"}}
			if tc.owner != "" {
				claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(claim,
					cdi.GroupVersion.WithKind(tc.owner))}
			}
			got, problem, err := Filled(t.Context(), tc.reader, claim)
			if got != tc.want || (problem == "") != (tc.problem == "") || !strings.Contains(problem, tc.problem) ||
				!errors.Is(err, tc.err) {
				t.Errorf("got %t, %q, %v", got, problem, err)
			}
		})
	}
}
