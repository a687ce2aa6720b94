// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package eviction decides what an eviction of a launcher Pod means to its guest. It is pure: the webhook that asks and the
// reconciler that carries the guests away do the reading and writing.
package eviction
