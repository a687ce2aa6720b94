// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package specsupport lists what Vireo does not support of the specs that KubeVirt's admission accepts:
//   - fields, annotations and feature gates that are not implemented yet (unimplemented.go and its tables);
//   - values that no guest can have, such as a claim without a name (impossible.go).
//
// Admission warns about both. The controllers do not start a VMI that would get something other than its spec requests, and set a
// condition that names the field.
package specsupport
