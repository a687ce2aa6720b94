// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package clusterconfig resolves the KubeVirt object to a Config with all defaults. All components read the cluster's
// configuration only through it, so that they agree on the meaning of an empty field.
//
// FromKubeVirt resolves one object. A Store follows the object of the install namespace.
package clusterconfig
