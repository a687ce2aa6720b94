// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package kit contains what the reconcilers of virt-controller have in common: interfaces of their sources, watches, indexes,
// batches of requests, and reads.
package kit
