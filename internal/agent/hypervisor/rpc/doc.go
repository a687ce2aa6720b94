// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package rpc connects to the libvirtd of a launcher Pod from the node, with libvirt's own protocol over the unix socket in the
// Pod's emptyDir.
//
// The launcher may be hostile. So virt-broker connects to the socket: it follows no symlink, and checks that the process behind
// the socket belongs to the Pod. libvirt's client connects through a relay that the agent can close at any time. Every call has a
// deadline, and responses are capped. Every failure on that path is a hypervisor.ErrUnreachable: the guest's state is then unknown.
package rpc
