// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package hostile tests one agent with fifty hostile launchers that try to delay it, and guests with ordinary launchers
// that are started, paused, migrated and stopped at the same time. The agent's reconciler, its connections, the C
// library and the API server are real; each launcher's libvirtd is a program of test/scriptedlibvirtd.
package hostile
