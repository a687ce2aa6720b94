// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package restore decides what a VirtualMachineRestore does next: a pure function from the restore, the content of the snapshot
// and the live objects to the objects that are to be created, changed and deleted, and to the restore's status. virt-controller
// applies the result, or a part of it, and calls the function again, until the restore is complete. The progress is read from the live
// objects. ADR 0086 explains the reasons. Names, reasons and messages are KubeVirt's (pkg/storage/snapshot) unless a comment says
// otherwise.
package restore
