// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package devicerule lets the processes of a container use a block device of the node, and takes that back. The rules are the kernel's:
//
//   - cgroup v1 has a list of rules for each cgroup, in which a rule of this package is recognized by its access: a runtime allows mknod
//     beside reading and writing, this package does not.
//   - cgroup v2 has programs. A program that the runtime has attached is replaced by one that begins with a check for the device and goes
//     on with the instructions of the original, which the kernel returns. So nothing that the runtime has allowed or denied is guessed.
//     The check has a mark, so that it is recognized and removed again.
//
// Nothing is stored elsewhere, so a broker that was restarted finds all rules.
package devicerule

// Device is a block device, by its numbers.
type Device struct{ Major, Minor uint32 }
