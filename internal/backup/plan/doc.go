// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package plan decides what virt-controller does next for a VirtualMachineBackup. It is pure: Next depends only on what was observed, and
// each step can be repeated. docs/adr/0090
package plan
