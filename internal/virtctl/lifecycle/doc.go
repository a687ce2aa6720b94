// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package lifecycle has the commands that change what a VM does: start, stop, restart, pause, migrate and their kind.
package lifecycle
