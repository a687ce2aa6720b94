// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package server serves virt-api, and no other client, the verbs of the VMIs that run on the agent's node, on the paths of
// package agentapi. Each verb is one file.
//
// An error is a Kubernetes Status that names what failed: the request, the guest, libvirtd in the launcher Pod, or the
// connection to it. Streams are websockets. The close frame contains the reason why a stream was closed.
package server
