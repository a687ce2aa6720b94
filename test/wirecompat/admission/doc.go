// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package admission holds what we take and refuse against what KubeVirt takes and refuses. Each case is an object, the
// verdict, and the fields that a refusal names; the facts come from KubeVirt's own validators. The cases go the way of the
// product: defaults, schema and CEL rules, and the webhooks, in a real API server. A case in which we differ on purpose
// says why.
package admission
