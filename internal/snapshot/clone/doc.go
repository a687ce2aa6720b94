// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package clone decides what a VirtualMachineClone does next: a pure function from the clone, its source, the snapshot, the restore and
// the target to the objects that are to be created and deleted, and to the clone's status. virt-controller applies what it returns,
// all of it or a part, and calls it again, until the clone has succeeded or failed. A clone is a snapshot that is restored to a new
// VM, with patches that make the VM another one. ADR 0086 has the reasons. Names, reasons and messages are KubeVirt's
// (pkg/virt-controller/watch/clone) unless a comment says otherwise.
package clone
