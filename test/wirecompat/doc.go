// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package wirecompat holds our API types against those of KubeVirt.
//
// It is a module of its own and the only place that imports kubevirt.io/api, so that nothing we ship depends on it. The
// pairs of types are in pairs.go: a new kind or body takes one line there and is then compared by reflection and by
// schema, sent through random round trips and, when it has a CRD, through a real API server. What differs on purpose is
// in differences.go, each line with its reason; a line that no longer matches anything fails the tests.
package wirecompat
