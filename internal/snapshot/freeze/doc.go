// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package freeze contains the decisions by which a guest's file systems are frozen while snapshots of its disks are taken, or while a backup
// of them begins: what virt-controller and the agent of the guest's node do next, given what each of them observes. ADR 0086 describes why a
// snapshot is never reported as consistent if it is not, and why no guest stays frozen. The same applies to backups. In this package,
// snapshots are also the copies of a backup.
//
// The functions are pure. The model in this package's tests calls the same functions while it enumerates crashes, stale reads,
// clocks that differ, and guests that thaw by themselves.
package freeze
