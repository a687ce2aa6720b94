// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package reconciler brings the VMIs of one node to life and reports how they are. It reads the world anew each
// time: the VMI, its launcher Pod, and the domain that libvirt has. What it keeps in memory only saves work, so the
// agent can be restarted at any line.
package reconciler
