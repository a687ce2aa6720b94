// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import "k8s.io/apimachinery/pkg/types"

// Remembers reports whether the process still knows a transfer that it has started.
func (r *Reconciler) Remembers(migration types.UID) bool { return r.transfers.Find(migration) != nil }
