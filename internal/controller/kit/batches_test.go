// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/vireo-project/vireo/internal/controller/kit"
)

func TestInBatches(t *testing.T) {
	refused := errors.New("refused")
	for _, tc := range []struct {
		name      string
		count     int
		refuse    func(i int) bool
		calls     int
		wantError bool
	}{
		{"none", 0, nil, 0, false},
		{"one", 1, nil, 1, false},
		{"all", 250, nil, 250, false},
		{"all are refused: one call", 250, func(int) bool { return true }, 1, true},
		{"the third batch is refused: the fourth is not tried", 250, func(i int) bool { return i >= 3 }, 7, true},
		{"one of a batch is refused: the others of it are done", 250, func(i int) bool { return i == 5 }, 7, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var mu sync.Mutex
			done := map[int]int{}
			err := kit.InBatches(tc.count, func(i int) error {
				mu.Lock()
				defer mu.Unlock()
				done[i]++
				if tc.refuse != nil && tc.refuse(i) {
					return refused
				}
				return nil
			})
			if errors.Is(err, refused) != tc.wantError {
				t.Errorf("error %v", err)
			}
			if len(done) != tc.calls {
				t.Errorf("%d calls, want %d", len(done), tc.calls)
			}
			for i, times := range done {
				if times != 1 || i >= tc.count {
					t.Errorf("%d was done %d times", i, times)
				}
			}
		})
	}
}

func TestCreateInBatches(t *testing.T) {
	var calls atomic.Int32
	made, err := kit.CreateInBatches(5, func() (*int32, error) {
		n := calls.Add(1)
		if n == 3 {
			return nil, errors.New("no")
		}
		return &n, nil
	})
	if err == nil || len(made) != 2 {
		t.Errorf("%d were made, %v", len(made), err)
	}
	ends := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "a", errors.New("ends"))
	ends.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	if made, err := kit.CreateInBatches(2, func() (*int32, error) { return nil, ends }); err != nil || len(made) != 0 {
		t.Errorf("in a namespace that ends, %d were made, %v", len(made), err)
	}
}
