// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package instancetype applies instance types and preferences to the template of a VM, and validates them. It is pure: its results depend
// only on its arguments, which it does not change.
package instancetype
