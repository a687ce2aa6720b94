// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package libvirtd runs the launcher image's libvirtd for tests, as a launcher Pod would: from the image's
// root file system, as UID 107 without capabilities, below a PID 1 that reaps, in mount, PID, network, IPC
// and UTS namespaces of its own. Nothing outside of those namespaces and of one temporary directory changes,
// and everything ends with the test, even with one that is killed.
//
// It needs root. The test binary starts itself again as the PID 1, so importing the package is all it takes.
package libvirtd
