// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
)

// Probe looks at the guest again and again.
type Probe struct {
	Handler `json:",inline"`
	// initialDelaySeconds is the time in seconds before the first look. Default: 0.
	// +optional
	InitialDelaySeconds int32 `json:"initialDelaySeconds,omitempty"`
	// timeoutSeconds is the time in seconds that a look may take. Default: 1.
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// periodSeconds is the time in seconds between looks. Default: 10.
	// +optional
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// successThreshold is how many good looks in a row make it good. Default: 1.
	// +optional
	SuccessThreshold int32 `json:"successThreshold,omitempty"`
	// failureThreshold is how many bad looks in a row make it bad. Default: 3.
	// +optional
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// Handler is how a probe looks. One member is set.
type Handler struct {
	// exec runs a command in the guest, by the guest agent.
	// +optional
	Exec *corev1.ExecAction `json:"exec,omitempty"`
	// guestAgentPing asks the guest agent for an answer.
	// +optional
	GuestAgentPing *GuestAgentPing `json:"guestAgentPing,omitempty"`
	// httpGet gets a page.
	// +optional
	HTTPGet *corev1.HTTPGetAction `json:"httpGet,omitempty"`
	// tcpSocket opens a connection.
	// +optional
	TCPSocket *corev1.TCPSocketAction `json:"tcpSocket,omitempty"`
}

// GuestAgentPing has no options.
type GuestAgentPing struct{}
