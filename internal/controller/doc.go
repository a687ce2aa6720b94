// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package controller is the envtest suite of virt-controller's reconcilers. Each reconciler has a package beneath, which is named after
// the kind that it reconciles or after its task.
package controller
