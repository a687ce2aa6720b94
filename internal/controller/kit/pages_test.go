// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
