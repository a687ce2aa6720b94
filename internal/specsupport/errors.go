// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package specsupport

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxErrors is how many errors of one object are listed. The author of an object decides how many it has: 80,000 fit into one
// object, and Kubernetes took minutes to join their texts, because the time grows with the square of their number
// (aggregate.Error of k8s.io/apimachinery/pkg/util/errors).
const MaxErrors = 100

// LimitErrors returns the first errors of a list. The last of them reports how many were left out.
func LimitErrors(errs field.ErrorList) field.ErrorList {
	if len(errs) <= MaxErrors {
		return errs
	}
	first := slices.Clone(errs[:MaxErrors])
	last := *first[MaxErrors-1]
	last.Detail += fmt.Sprintf(" (and %d more faults, which are not listed)", len(errs)-MaxErrors)
	first[MaxErrors-1] = &last
	return first
}

// JoinErrors returns one error for a list that is capped by LimitErrors, or nil for an empty list.
func JoinErrors(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return LimitErrors(errs).ToAggregate()
}

// NewInvalid returns the API error "Invalid" for an object, with a list that is capped by LimitErrors.
func NewInvalid(kind schema.GroupKind, name string, errs field.ErrorList) error {
	return apierrors.NewInvalid(kind, name, LimitErrors(errs))
}
