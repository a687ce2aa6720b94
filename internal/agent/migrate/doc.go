// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package migrate runs the transfers of guests that migrate away from the node: it gets the destination from the
// target's agent (package peer), has libvirt transfer the guest, and decides with package convergence how the transfer
// ends.
//
// It does not decide who owns the guest: internal/decide/migration/protocol does, and internal/agent/vmi carries that
// out.
package migrate
