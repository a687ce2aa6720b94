// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package conditions reads and changes the lists of conditions that the statuses of KubeVirt's kinds have.
package conditions

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition is satisfied by the condition types of all kinds of the API, each of which has a type T of its own for the
// names of its conditions.
type Condition[T ~string] interface {
	~struct {
		Type               T                      `json:"type"`
		Status             corev1.ConditionStatus `json:"status"`
		LastProbeTime      metav1.Time            `json:"lastProbeTime,omitempty"`
		LastTransitionTime metav1.Time            `json:"lastTransitionTime,omitempty"`
		Reason             string                 `json:"reason,omitempty"`
		Message            string                 `json:"message,omitempty"`
	}
}

// fields gives access to the fields of a Condition, to which it can be converted.
type fields[T ~string] struct {
	Type               T
	Status             corev1.ConditionStatus
	LastProbeTime      metav1.Time
	LastTransitionTime metav1.Time
	Reason             string
	Message            string
}

// Find returns the condition of a type as an element of the list, or nil.
func Find[C Condition[T], T ~string](list []C, kind T) *C {
	for i := range list {
		if fields[T](list[i]).Type == kind {
			return &list[i]
		}
	}
	return nil
}

// IsTrue reports whether the list has the condition with status True.
func IsTrue[C Condition[T], T ~string](list []C, kind T) bool {
	c := Find(list, kind)
	return c != nil && fields[T](*c).Status == corev1.ConditionTrue
}

// Set adds or replaces a condition and reports whether that changed the list. A condition whose status stays the same
// keeps its times.
func Set[C Condition[T], T ~string](list *[]C, condition C) bool {
	wanted := fields[T](condition)
	current := Find(*list, wanted.Type)
	if current == nil {
		*list = append(*list, condition)
		return true
	}
	known := fields[T](*current)
	if known.Status == wanted.Status {
		wanted.LastProbeTime, wanted.LastTransitionTime = known.LastProbeTime, known.LastTransitionTime
	}
	if known == wanted {
		return false
	}
	*current = C(wanted)
	return true
}

// SetProbed is Set for lists in which LastProbeTime is the time of the last change, also of one that keeps the status.
func SetProbed[C Condition[T], T ~string](list *[]C, condition C) bool {
	if !Set(list, condition) {
		return false
	}
	wanted := fields[T](condition)
	current := Find(*list, wanted.Type)
	probed := fields[T](*current)
	probed.LastProbeTime = wanted.LastProbeTime
	*current = C(probed)
	return true
}

// SetTrue makes a condition true. If it already was, its transition time does not change.
func SetTrue[C Condition[T], T ~string](list *[]C, kind T, reason, message string, now metav1.Time) {
	Set(list, C(fields[T]{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message,
		LastTransitionTime: now}))
}

// Message returns the message of a condition, or an empty one.
func Message[C Condition[T], T ~string](list []C, kind T) string {
	if c := Find(list, kind); c != nil {
		return fields[T](*c).Message
	}
	return ""
}

// Remove removes the condition of a type and reports whether the list had it.
func Remove[C Condition[T], T ~string](list *[]C, kind T) bool {
	before := len(*list)
	*list = slices.DeleteFunc(*list, func(c C) bool { return fields[T](c).Type == kind })
	return len(*list) != before
}
