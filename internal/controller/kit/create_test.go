// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pagedRanges is an API server with LimitRanges, which lists at most as many as are requested.
type pagedRanges struct {
	client.Reader
	ranges  []corev1.LimitRange
	largest int64
}

func (p *pagedRanges) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	requested := (&client.ListOptions{}).ApplyOptions(options)
	if requested.Limit == 0 || requested.Namespace != "ns" {
		p.largest = int64(len(p.ranges))
	}
	p.largest = max(p.largest, requested.Limit)
	first, _ := strconv.Atoi(requested.Continue)
	last := min(first+int(requested.Limit), len(p.ranges))
	found := list.(*corev1.LimitRangeList)
	if len(found.Items) > 0 {
		panic("a page is used again")
	}
	found.Items = p.ranges[first:last]
	if last < len(p.ranges) {
		found.Continue = strconv.Itoa(last)
	}
	return nil
}

func TestLimitRangesAreReadInPages(t *testing.T) {
	quantity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"),
		"example.com/large": resource.MustParse("1"),
	}
	live := &pagedRanges{}
	for i := range 3*WholePageSize + 1 {
		live.ranges = append(live.ranges, corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(i), Annotations: map[string]string{"note": "large"}},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
				{Type: corev1.LimitTypeContainer, Min: quantity, Max: quantity, MaxLimitRequestRatio: quantity, Default: quantity},
				{Type: corev1.LimitTypePersistentVolumeClaim, Max: quantity},
			}},
		})
	}
	read := func() []corev1.LimitRangeItem {
		t.Helper()
		ranges, err := LimitRanges(t.Context(), live, "ns")
		if err != nil || len(ranges) != 1 || len(ranges[0].Annotations) > 0 {
			t.Fatal(ranges, err)
		}
		return ranges[0].Spec.Limits
	}
	limits := read()
	if len(limits) != len(live.ranges) || live.largest > WholePageSize {
		t.Errorf("%d limits of %d ranges, in pages of %d", len(limits), len(live.ranges), live.largest)
	}
	for _, item := range limits {
		for _, kept := range []corev1.ResourceList{item.Min, item.Max, item.MaxLimitRequestRatio} {
			if len(kept) != 2 || kept.Cpu().Value() != 1 || kept.Memory().Value() != 1<<30 {
				t.Fatal(item)
			}
		}
		if item.Type != corev1.LimitTypeContainer || item.Default != nil {
			t.Fatal(item)
		}
	}
	for range 5 {
		live.ranges = append(live.ranges, live.ranges...)
	}
	if limits := read(); len(limits) != maxLimits {
		t.Errorf("%d limits are kept", len(limits))
	}
}

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
			err := InBatches(tc.count, func(i int) error {
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
	made, err := CreateInBatches(5, func() (*int32, error) {
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
	if made, err := CreateInBatches(2, func() (*int32, error) { return nil, ends }); err != nil || len(made) != 0 {
		t.Errorf("in a namespace that ends, %d were made, %v", len(made), err)
	}
}
