// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionType is a type of condition of a snapshot or a restore.
type ConditionType string

// Values of ConditionType.
const (
	// ConditionReady is True once a snapshot can be restored, and once a restore is complete.
	ConditionReady ConditionType = "Ready"
	// ConditionProgressing is True while a snapshot is being taken, and while a restore is running.
	ConditionProgressing ConditionType = "Progressing"
	// ConditionFailure is True once a snapshot or a restore has failed for good.
	ConditionFailure ConditionType = "Failure"
)

// Condition is one aspect of the state of a snapshot or a restore.
type Condition struct {
	// type is the condition's type: Ready, Progressing or Failure.
	Type ConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastProbeTime is not kept up to date.
	// +optional
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// lastTransitionTime is when status last changed.
	// +optional
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// reason is the reason in one word, for programs.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message is the explanation and the remedy, for people.
	// +optional
	Message string `json:"message,omitempty"`
}

// Error is the last error.
type Error struct {
	// time is when it occurred.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
	// message is the error's text.
	// +optional
	Message *string `json:"message,omitempty"`
}
