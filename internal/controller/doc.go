// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package controller holds virt-controller's reconcilers, one file for each kind: what it may do, what wakes it and
// what it does first. The phases of a reconciler are in a package of its own beneath.
package controller
