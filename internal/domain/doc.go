// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package domain turns a VirtualMachineInstance and the facts of its Pod into a libvirt domain. It is pure:
// the same input gives the same output, nothing is read and nothing is changed.
package domain
