// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package eventtime reads the time of Kubernetes Events.
package eventtime

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// LastObserved returns when an event was last observed: the latest of its times. Clients of core/v1 set lastTimestamp,
// those of events.k8s.io/v1 set eventTime, and series if the event is repeated.
func LastObserved(e *corev1.Event) time.Time {
	latest := e.LastTimestamp.Time
	others := []time.Time{e.EventTime.Time, e.CreationTimestamp.Time}
	if e.Series != nil {
		others = append(others, e.Series.LastObservedTime.Time)
	}
	for _, t := range others {
		if t.After(latest) {
			latest = t
		}
	}
	return latest
}
