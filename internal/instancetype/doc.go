// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package instancetype applies instance types and preferences to the template of a VM, and has the rules about them. It is
// pure: its results depend on its arguments only, and it does not change them.
package instancetype
