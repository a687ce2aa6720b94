// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package domain turns a VirtualMachineInstance and the facts of its Pod into a libvirt domain. It is pure:
// its results depend on its arguments only, and it does not change them.
package domain
