// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package controller is the envtest suite of those of virt-controller's reconcilers that have none of their own, and of several under one
// manager. Each reconciler has a package beneath, which is named after the kind that it reconciles or after its task.
package controller
