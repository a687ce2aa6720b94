// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/vireo-project/vireo/internal/conditions"
)

// Failure is why an object is not as it should be: a condition, and the events that are recorded once the status shows
// it.
type Failure struct {
	// Reason and Message are those of the condition.
	Reason, Message string
	// Events may differ from the condition. There may be none.
	Events []FailureEvent
}

// FailureEvent is an event about a failure.
type FailureEvent struct{ Reason, Action, Note string }

// SetFailure makes a condition show a failure, or removes it if there is none.
func SetFailure[C conditions.Condition[T], T ~string](list *[]C, kind T, failure *Failure, now time.Time) {
	if failure == nil {
		conditions.Remove(list, kind)
		return
	}
	conditions.SetTrue(list, kind, failure.Reason, failure.Message, metav1.NewTime(now))
}

// RecordFailure records the events of a failure, unless the conditions that the status had before show it.
func RecordFailure[C conditions.Condition[T], T ~string](
	recorder events.EventRecorder, object runtime.Object, before []C, kind T, failure *Failure,
) {
	if failure == nil || conditions.Find(before, kind) != nil && conditions.Message(before, kind) == failure.Message {
		return
	}
	for _, e := range failure.Events {
		recorder.Eventf(object, nil, corev1.EventTypeWarning, e.Reason, e.Action, "%s", e.Note)
	}
}
