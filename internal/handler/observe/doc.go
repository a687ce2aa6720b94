// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package observe tells the manager about the node: a Lease that says that the agent lives, and a ConfigMap that says
// what the node can run. The agent writes no Node.
package observe
