// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package peer contains the requests that the agents of a migration's two nodes exchange. The source's agent is the client: it requests
// from the target's agent where to send the guest, reaches the target's libvirtd through it, and finally releases the guest. The
// target's agent is the server, which authorizes each request by the VMI's status.
package peer
