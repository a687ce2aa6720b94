// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package plan decides what a VirtualMachineExport consists of and what has to be done for it next: which claims are exported, in which
// formats, by which Pod, and what its status is. It is pure: the reconciler reads a World, applies the Step and writes the status.
package plan
