// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package capture decides what a snapshot of a VM consists of: which volumes it includes and why it omits others, when the VM can be
// locked, the content with the copy of the VM and of its claims, and the statuses of both objects. It is pure:
// virt-controller calls it with what it has read. Names, reasons and messages are KubeVirt's (pkg/storage/snapshot) unless a
// comment says otherwise.
package capture
