// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package common generates the cluster-wide instance types and preferences of KubeVirt's common-instancetypes, with the same names,
// labels and specs. Users, images and consoles refer to them by name and select them by label.
//
// families.go and systems.go are the tables. traits.go has the parts of preferences that the table of systems names.
package common
