// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package plan decides the next step of a VirtualMachineExport: which claims are exported in which formats, its Pod, Service and Secrets,
// and its status. It is pure: the reconciler reads a World, applies the Step and writes the status.
package plan
