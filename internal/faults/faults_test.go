// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package faults

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func listOf(n int) field.ErrorList {
	var errs field.ErrorList
	for i := range n {
		errs = append(errs, field.Invalid(field.NewPath("list").Index(i), i, "is wrong"))
	}
	return errs
}

func TestSomeSaysHowManyMoreThereAre(t *testing.T) {
	all := listOf(Most + 7)
	some := Some(all)
	if len(some) != Most || some[Most-1].Error() != "list[99]: Invalid value: 99: is wrong (and 7 more faults, which are not listed)" {
		t.Errorf("%d faults, the last is %v", len(some), some[len(some)-1])
	}
	if strings.Contains(all[Most-1].Error(), "more faults") {
		t.Error("the caller's list is changed")
	}
	if few := Some(listOf(Most)); len(few) != Most || strings.Contains(few.ToAggregate().Error(), "more faults") {
		t.Errorf("%d faults of %d", len(few), Most)
	}
}

func TestJoinAndInvalid(t *testing.T) {
	if err := Join(nil); err != nil {
		t.Errorf("no faults are %v", err)
	}
	if err := Join(listOf(2)); err == nil || !strings.Contains(err.Error(), "list[1]") {
		t.Errorf("got %v", err)
	}
	var status apierrors.APIStatus
	err := Invalid(schema.GroupKind{Kind: "VirtualMachine"}, "vm", listOf(5*Most))
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || len(status.Status().Details.Causes) != Most {
		t.Errorf("got %v", err)
	}
}
