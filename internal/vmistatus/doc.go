// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package vmistatus is the only code that patches the status of a VirtualMachineInstance. Two processes write
// that status: virt-controller until the hand-over and again after the launcher Pod ended, the node's agent in
// between. Every field has exactly one writer at every moment; the table in ownership.go says which, and Patch
// refuses a change of somebody else's field.
package vmistatus
