// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package hostile is the suite in which one agent has fifty launchers that do all they can to hold it up, and guests beside them that
// are started, paused, migrated and stopped all the same. The agent's reconciler, connections and C library are the real ones, and so is
// the API server; each launcher's libvirtd is played.
package hostile
