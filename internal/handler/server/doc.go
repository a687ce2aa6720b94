// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package server is what the agent serves to virt-api: the verbs of the running instances of its node, on the paths of
// package agentapi. Nobody else is served. Each verb is one file.
//
// A refusal is a Status of Kubernetes that says who is at fault: the caller, the guest, libvirtd in the launcher Pod, or the
// connection to it. Streams are websockets. What ends one is told in its close frame.
package server
