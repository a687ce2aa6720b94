// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package vmi runs the VMIs of one node and reports their state. Each reconcile reads everything again: the VMI, its
// launcher Pod, and libvirt's domain. What is kept in memory only saves work, so the agent can be restarted at any point.
package vmi
