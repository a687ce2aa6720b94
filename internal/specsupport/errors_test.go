// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package specsupport

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

func TestLimitErrors(t *testing.T) {
	all := listOf(MaxErrors + 7)
	first := LimitErrors(all)
	if last := first[len(first)-1]; len(first) != MaxErrors || last.Field != "list[99]" || !strings.Contains(last.Detail, "7 more faults") {
		t.Errorf("%d faults, the last is %v", len(first), first[len(first)-1])
	}
	if strings.Contains(all[MaxErrors-1].Error(), "more faults") {
		t.Error("the caller's list is changed")
	}
	if few := LimitErrors(listOf(MaxErrors)); len(few) != MaxErrors || strings.Contains(few.ToAggregate().Error(), "more faults") {
		t.Errorf("%d faults of %d", len(few), MaxErrors)
	}
}

func TestJoinErrorsAndNewInvalid(t *testing.T) {
	if err := JoinErrors(nil); err != nil {
		t.Errorf("an empty list gives %v", err)
	}
	if err := JoinErrors(listOf(2)); err == nil || !strings.Contains(err.Error(), "list[1]") {
		t.Errorf("got %v", err)
	}
	var status apierrors.APIStatus
	err := NewInvalid(schema.GroupKind{Kind: "VirtualMachine"}, "vm", listOf(5*MaxErrors))
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || len(status.Status().Details.Causes) != MaxErrors {
		t.Errorf("got %v", err)
	}
}
