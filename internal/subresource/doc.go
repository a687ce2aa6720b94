// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package subresource is what virt-api does: the verbs of the aggregated API subresources.kubevirt.io. Each verb is one
// file; the table of table.go registers them, and discovery, the OpenAPI documents, routing and authorization all
// follow from it. The package server puts them behind the checks of a Kubernetes API server.
package subresource
