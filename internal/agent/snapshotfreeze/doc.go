// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package snapshotfreeze freezes the guests of a node while snapshots of their disks are taken. It carries out what the pure package
// internal/snapshot/freeze decides, with goroutines of its own: a guest may take a minute to freeze, and the reconciliation of its
// VMI must not wait for that.
package snapshotfreeze
