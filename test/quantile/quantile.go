// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package quantile summarizes measurements by quantiles, in the same way for all benchmarks.
package quantile

import (
	"math"
	"slices"
	"time"
)

// Nearest is a quantile of a sample by its nearest rank, or 0 if there is no sample: of ten values, the 0.95 quantile
// is the highest.
func Nearest(sample []float64, q float64) float64 {
	if len(sample) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(sample))
	// The product of two decimals may be a little more than the whole number that is meant.
	rank := int(math.Ceil(q*float64(len(sorted)) - 1e-9))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Pair are two quantiles of one sample.
type Pair struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
}

// Of is the pair of a sample.
func Of(sample []float64) Pair {
	return Pair{P50: Nearest(sample, 0.50), P95: Nearest(sample, 0.95)}
}

// Milliseconds is the pair of a sample of durations, in milliseconds.
func Milliseconds(sample []time.Duration) Pair {
	values := make([]float64, 0, len(sample))
	for _, d := range sample {
		values = append(values, float64(d.Microseconds())/1000)
	}
	return Of(values)
}
