// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package common generates the cluster-wide instance types and preferences of KubeVirt's common-instancetypes, with the same names,
// labels and specs. Users, images and consoles refer to them by name and select them by label.
//
// families.go and systems.go contain the tables. traits.go contains the parts of preferences to which the table of systems refers.
package common
