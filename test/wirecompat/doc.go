// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package wirecompat compares Vireo's API types with KubeVirt's.
//
// It is a module of its own, so that Vireo itself does not depend on kubevirt.io/api. The pairs of types are in
// pairs.go: a new kind or body needs one line there. Pairs are compared by reflection and by schema, and tested with
// random objects in round trips and, if they have a CRD, in a real API server. Intended differences are in
// differences.go with their reasons; an entry that no longer matches fails the tests.
package wirecompat
