// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package clone decides what a VirtualMachineClone does next: a pure function from the clone, its source, the snapshot, the restore and
// the target to the objects that are to be created and deleted, and to the clone's status. virt-controller applies the result, or a part
// of it, and calls the function again, until the clone has succeeded or failed. A clone is a snapshot that is restored to a new VM, with
// patches that give the VM another identity. ADR 0086 explains the reasons. Names, reasons and messages are KubeVirt's
// (pkg/virt-controller/watch/clone) unless a comment says otherwise.
package clone
