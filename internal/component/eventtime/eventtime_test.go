// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package eventtime

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLastObserved(t *testing.T) {
	created := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	later := created.Add(time.Minute)
	for name, tc := range map[string]struct {
		event corev1.Event
		want  time.Time
	}{
		"of core/v1":                       {corev1.Event{LastTimestamp: metav1.Time{Time: later}}, later},
		"of events.k8s.io/v1":              {corev1.Event{EventTime: metav1.MicroTime{Time: later}}, later},
		"of events.k8s.io/v1 and repeated": {corev1.Event{EventTime: metav1.MicroTime{Time: created}, Series: &corev1.EventSeries{LastObservedTime: metav1.MicroTime{Time: later}}}, later},
		"without a time":                   {corev1.Event{}, created},
	} {
		t.Run(name, func(t *testing.T) {
			tc.event.CreationTimestamp = metav1.Time{Time: created}
			if got := LastObserved(&tc.event); !got.Equal(tc.want) {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
