// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package clientcompat tests Vireo's API with KubeVirt's Go client, as an operator, a dashboard or virtctl uses it:
// every kind and every subresource. It is a module of its own, because that client needs older Kubernetes libraries.
// The cluster is a separate process, test/clientworld of the main module.
package clientcompat
