// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package protocol contains the decisions by which a running guest moves from one node to another: what the source's agent, the
// target's agent and virt-controller do next, given what each of them observes. ADR 0023 describes the protocol and why it is safe.
//
// The functions are pure. The agents and virt-controller call them with what they read, and the model in this package's tests calls
// the same functions while it enumerates crashes, lost messages, late responses and stale reads. So the model checks the protocol that
// actually runs.
package protocol
