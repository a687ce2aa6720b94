// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package migration holds the decisions by which a running guest moves from one node to another: what the source's agent, the
// target's agent and virt-controller do next, given what each of them sees. ADR 0023 tells the protocol and why it is safe.
//
// The functions are pure. Agents and controller call them with what they read, and the model in this package's tests calls the
// very same functions while it enumerates crashes, lost messages, late answers and stale reads. So the protocol that was checked is
// the protocol that runs.
package migration
