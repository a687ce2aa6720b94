// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package subresource implements the verbs of the aggregated API subresources.kubevirt.io, such as virtualmachines/start.
// API.Verbs lists them, and discovery, the OpenAPI documents, routing and authorization are derived from that list. The package
// server serves them.
package subresource
