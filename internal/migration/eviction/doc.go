// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package eviction decides whether a launcher Pod may be evicted, or its guest has to migrate instead. It is pure: the webhook and the
// evacuation controller read and write the objects.
package eviction
