// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package clientcompat drives our API with KubeVirt's own Go client, unmodified, as an operator, a dashboard or virtctl does:
// every kind that we serve and every subresource, over the wire. It is a module of its own, because that client needs older
// libraries of Kubernetes than we do; what it talks to is the program test/clientworld of the main module.
package clientcompat
