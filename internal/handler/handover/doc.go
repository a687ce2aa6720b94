// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package handover is what two agents do with each other while a guest moves from the node of one to that of the other. The
// source's agent asks the target's where to send the guest and reaches the target's libvirtd through it, has libvirt copy the
// guest, watches that this comes to an end, and says at last that the guest may run there.
//
// It takes no decision about who owns the guest: internal/migration does, and internal/handler/reconciler carries that out.
package handover
