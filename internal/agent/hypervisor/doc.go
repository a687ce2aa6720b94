// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package hypervisor has the types and errors of the agent's connections to hypervisors. Errors distinguish an unreachable
// hypervisor from one that rejected a request. Package rpc implements the connections with libvirt, package fake in memory.
// Consumers declare the interfaces that they need.
package hypervisor
