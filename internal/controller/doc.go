// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package controller is the envtest suite of several of virt-controller's reconcilers under one manager. Each
// reconciler has a package beneath, which is named after the kind that it reconciles or after its task, with specs of
// its own.
package controller
