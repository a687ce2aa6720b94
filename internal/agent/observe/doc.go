// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package observe reports on the node to virt-controller: a Lease is the agent's heartbeat, and a ConfigMap contains the node's
// capabilities. The agent does not write the Node.
package observe
