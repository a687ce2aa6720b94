// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package eviction decides whether a launcher Pod may be evicted, or its guest migrates instead. It is pure: the webhook and the evacuation
// controller do the reading and writing.
package eviction
