// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import "k8s.io/apimachinery/pkg/types"

// Remembers says whether the process still knows of a copy that it has begun.
func (r *Reconciler) Remembers(migration types.UID) bool { return r.copies.Find(migration) != nil }
