// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package hypervisor holds what the agent knows about a VM's hypervisor as plain data, and the errors that
// tell "cannot be reached" from "said no". Package rpc talks to libvirt, package fake keeps domains in memory;
// the packages that use them declare the interfaces that they need.
package hypervisor
