// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
)

// Probe checks the guest periodically.
type Probe struct {
	Handler `json:",inline"`
	// initialDelaySeconds is the time in seconds before the first check. Default: 0.
	// +optional
	InitialDelaySeconds int32 `json:"initialDelaySeconds,omitempty"`
	// timeoutSeconds is the time in seconds that a check may take. Default: 1.
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// periodSeconds is the time in seconds between checks. Default: 10.
	// +optional
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// successThreshold is the number of consecutive successes for the probe to succeed. Default: 1.
	// +optional
	SuccessThreshold int32 `json:"successThreshold,omitempty"`
	// failureThreshold is the number of consecutive failures for the probe to fail. Default: 3.
	// +optional
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// Handler is what a probe checks. One member is set.
type Handler struct {
	// exec runs a command in the guest, by the guest agent.
	// +optional
	Exec *corev1.ExecAction `json:"exec,omitempty"`
	// guestAgentPing pings the guest agent.
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
