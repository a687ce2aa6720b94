// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package clusterconfig turns the KubeVirt object into plain values with every default resolved. The
// manager, its webhooks and the node agents read the cluster's configuration through it and nowhere else,
// so that all of them agree on what an empty field means.
//
// Parse a KubeVirt object with FromKubeVirt, or follow the one of the install namespace with a Store.
package clusterconfig
