// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package version describes the build.
package version

// Version is the version of this build. The build sets it with -ldflags -X.
var Version = "devel"
