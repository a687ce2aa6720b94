// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package quantile_test

import (
	"testing"
	"time"

	"github.com/vireo-project/vireo/test/quantile"
)

func upTo(n int) []float64 {
	var sample []float64
	// From the highest: a sample needs no order.
	for i := n; i > 0; i-- {
		sample = append(sample, float64(i))
	}
	return sample
}

func TestNearest(t *testing.T) {
	for _, c := range []struct {
		size int
		q    float64
		want float64
	}{
		{0, 0.5, 0},
		{1, 0.5, 1},
		{1, 0.95, 1},
		{2, 0.5, 1},
		{3, 0.5, 2},
		{10, 0.5, 5},
		{10, 0.95, 10},
		{20, 0.95, 19},
		{21, 0.95, 20},
		{30, 0.95, 29},
		{100, 0.95, 95},
		{200, 0.95, 190},
		{10, 1, 10},
	} {
		if got := quantile.Nearest(upTo(c.size), c.q); got != c.want {
			t.Errorf("the %v quantile of 1 to %d is %v, not %v", c.q, c.size, got, c.want)
		}
	}
}

func TestMilliseconds(t *testing.T) {
	got := quantile.Milliseconds([]time.Duration{2500 * time.Microsecond, time.Millisecond})
	if want := (quantile.Pair{P50: 1, P95: 2.5}); got != want {
		t.Errorf("%v, not %v", got, want)
	}
}
