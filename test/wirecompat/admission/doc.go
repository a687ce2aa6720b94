// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package admission tests that Vireo accepts and rejects the same objects as KubeVirt. Each case is an object, the
// result, and the fields in the error, taken from KubeVirt's validators. Objects are created in a real API server with
// defaults, schema, CEL rules and webhooks. A case with an intended difference has the reason.
package admission
