// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionType is what a condition of a snapshot or a restore is about.
type ConditionType string

// Values of ConditionType.
const (
	// ConditionReady is True once a snapshot can be restored, and once a restore is done.
	ConditionReady ConditionType = "Ready"
	// ConditionProgressing is True while a snapshot is being taken, and while a restore goes on.
	ConditionProgressing ConditionType = "Progressing"
	// ConditionFailure is True once a snapshot or a restore has failed for good.
	ConditionFailure ConditionType = "Failure"
)

// Condition is one aspect of the state of a snapshot or a restore.
type Condition struct {
	// type is what the condition is about: Ready, Progressing or Failure.
	Type ConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastProbeTime is when somebody last looked. It is not kept up to date.
	// +optional
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// lastTransitionTime is when status last changed.
	// +optional
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// reason says why status is what it is, for programs.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says why status is what it is and what can be done about it, for people.
	// +optional
	Message string `json:"message,omitempty"`
}

// Error is the last thing that went wrong.
type Error struct {
	// time is when it went wrong.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
	// message says what went wrong.
	// +optional
	Message *string `json:"message,omitempty"`
}
