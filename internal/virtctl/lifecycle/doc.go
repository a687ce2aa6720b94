// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package lifecycle implements the commands that start, stop, restart, pause, reboot and migrate VMs.
package lifecycle
