// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"math/rand/v2"
	"testing"
)

func TestCoverage(t *testing.T) {
	const size = 1000
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		c, model := &coverage{limit: maxRanges}, [size]bool{}
		for range 40 {
			start := random.Uint64N(size)
			r := span{start, start + random.Uint64N(min(50, size-start)+1)}
			c.add(r)
			covered := uint64(0)
			for i := range model {
				model[i] = model[i] || uint64(i) >= r.start && uint64(i) < r.end
				if model[i] {
					covered++
				}
			}
			if c.covered != covered || c.ranges != len(c.regions[0]) || c.complete(size) != (covered == size) {
				t.Fatalf("seed %d: %d bytes are covered, not %d", seed, c.covered, covered)
			}
		}
		c.add(span{0, size})
		if !c.complete(size) || c.ranges != 1 {
			t.Fatalf("seed %d: %d bytes in %d ranges are covered", seed, c.covered, c.ranges)
		}
	}
}

func TestCoverageOfLargeDisks(t *testing.T) {
	c := &coverage{limit: maxRanges}
	const size = 3*regionSize + 5
	c.add(span{regionSize - 1, size})
	if c.complete(size) {
		t.Error("the beginning is not covered")
	}
	if c.add(span{0, regionSize - 1}); !c.complete(size) || c.ranges != 4 {
		t.Errorf("%d bytes in %d ranges are covered", c.covered, c.ranges)
	}
}

func TestCoverageForgetsWhatIsTooMuch(t *testing.T) {
	const limit = 100
	c := &coverage{limit: limit}
	for i := range uint64(limit + 10) {
		c.add(span{2 * i, 2*i + 1})
	}
	if c.ranges != limit || c.complete(limit+1) {
		t.Errorf("%d bytes in %d ranges are covered", c.covered, c.ranges)
	}
	if c.add(span{0, 2*limit + 20}); !c.complete(2*limit + 20) {
		t.Error("later ranges do not count")
	}
}
