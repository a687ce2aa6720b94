// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestResult(t *testing.T) {
	failure := errors.New("no")
	for name, tc := range map[string]struct {
		err   error
		after time.Duration
		want  error
	}{
		"success":  {nil, time.Minute, nil},
		"conflict": {fmt.Errorf("patch: %w", apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", failure)), ConflictRetry, nil},
		"busy":     {fmt.Errorf("scan: %w", ErrBusy), BusyRetry, nil},
		"failure":  {failure, 0, failure},
	} {
		result, err := Result(tc.err, time.Minute)
		if result.RequeueAfter != tc.after || !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, %v", name, result.RequeueAfter, err)
		}
	}
}
