// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package rpc reaches the libvirtd of a launcher Pod from the node: libvirt's own protocol over the unix
// socket in the Pod's emptyDir, and nothing else.
//
// The launcher may be hostile. So the way to its socket follows no symlink, the process behind the socket must
// belong to the Pod, libvirt's client talks through a relay that the agent can cut at any time, every call has
// a deadline, and what comes back is capped. Whatever goes wrong on that way is hypervisor.ErrUnreachable and
// says nothing about the guest.
package rpc
