// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestResult(t *testing.T) {
	failure, other := errors.New("no"), errors.New("neither")
	conflict := fmt.Errorf("patch: %w", apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", failure))
	busy := fmt.Errorf("scan: %w", ErrBusy)
	const silent = "" // nothing is reported
	for name, tc := range map[string]struct {
		err error
		// after and grows are when the next reconciliation is: after a time, or after the queue's delay.
		after    time.Duration
		grows    bool
		reported string
	}{
		"success":                         {nil, time.Minute, false, silent},
		"conflict":                        {conflict, 0, true, silent},
		"busy":                            {busy, BusyRetry, false, silent},
		"failure":                         {failure, 0, false, "no"},
		"conflicts":                       {errors.Join(conflict, conflict), 0, true, silent},
		"busy and a conflict":             {errors.Join(busy, conflict), 0, true, silent},
		"one error in a join":             {errors.Join(nil, conflict), 0, true, silent},
		"conflict before a failure":       {errors.Join(conflict, failure), 0, false, "no"},
		"conflict after a failure":        {errors.Join(failure, conflict), 0, false, "no"},
		"busy before a failure":           {errors.Join(busy, failure), 0, false, "no"},
		"joins in a join":                 {errors.Join(errors.Join(conflict, failure), errors.Join(other, busy)), 0, false, "no\nneither"},
		"two failures":                    {errors.Join(failure, other), 0, false, "no\nneither"},
		"failures of a wrapped join":      {fmt.Errorf("all: %w", errors.Join(failure, other)), 0, false, "all: no\nneither"},
		"a failure of a wrapped join":     {fmt.Errorf("all: %w", errors.Join(conflict, failure)), 0, false, "no"},
		"only conflicts of a wrapped one": {fmt.Errorf("all: %w", errors.Join(conflict, conflict)), 0, true, silent},
		"two errors of one text":          {fmt.Errorf("%w: %w", failure, conflict), 0, false, "no"},
	} {
		result, err := Result(tc.err, time.Minute)
		reported := ""
		if err != nil {
			reported = err.Error()
		}
		if result.RequeueAfter != tc.after || result.Requeue != tc.grows || reported != tc.reported { //nolint:staticcheck // see Result
			t.Errorf("%s: got %+v, %q", name, result, reported)
		}
	}
}
