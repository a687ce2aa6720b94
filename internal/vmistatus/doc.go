// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package vmistatus has the only code that patches the status of a VirtualMachineInstance. Two processes write that status:
// virt-controller until the launcher Pod is assigned and again once it has finished, the node's agent in between. At any time
// each field has exactly one writer, by the tables of ownership.go; Patch refuses changes of other fields.
package vmistatus
