// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package faults bounds what is said of all that is wrong with an object, whose author decides how much that is.
package faults

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Most is how many faults of an object are listed. Kubernetes joins their texts in a time that grows with the square of their number
// (aggregate.Error of k8s.io/apimachinery/pkg/util/errors): the 80,000 that fit into one object took a processor for minutes.
const Most = 100

// Some are the first faults. The last of them says how many there are beside them.
func Some(errs field.ErrorList) field.ErrorList {
	if len(errs) <= Most {
		return errs
	}
	some := slices.Clone(errs[:Most])
	last := *some[Most-1]
	last.Detail += fmt.Sprintf(" (and %d more faults, which are not listed)", len(errs)-Most)
	some[Most-1] = &last
	return some
}

// Join is one error for some of the faults, or nil if there is none.
func Join(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return Some(errs).ToAggregate()
}

// Invalid is the API server's answer for an object with faults.
func Invalid(kind schema.GroupKind, name string, errs field.ErrorList) error {
	return apierrors.NewInvalid(kind, name, Some(errs))
}
