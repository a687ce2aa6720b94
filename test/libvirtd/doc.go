// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package libvirtd runs the launcher image's libvirtd for tests, as a launcher Pod would: from the image's
// root file system, as UID 107 without capabilities, below a PID 1 that reaps, in mount, PID, network, IPC
// and UTS namespaces of its own. It changes nothing outside of those namespaces and of one temporary directory,
// and all of its processes end with the test, even if the test is killed.
//
// It needs root. The test binary starts itself again as PID 1; for that, a test only has to import the package.
package libvirtd
