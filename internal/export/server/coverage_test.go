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
		c, model := &coverage{budget: &budget{limit: maxRanges}}, [size]bool{}
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
			if c.covered != covered || c.ranges() != len(c.regions[0]) || c.all(size) != (covered == size) {
				t.Fatalf("seed %d: %d bytes are covered, not %d", seed, c.covered, covered)
			}
		}
		c.add(span{0, size})
		if !c.all(size) || c.ranges() != 1 {
			t.Fatalf("seed %d: %d bytes in %d ranges are covered", seed, c.covered, c.ranges())
		}
	}
}

func TestCoverageOfLargeDisks(t *testing.T) {
	c := &coverage{budget: &budget{limit: maxRanges}}
	const size = 3*regionSize + 5
	c.add(span{regionSize - 1, size})
	if c.all(size) {
		t.Error("the beginning is not covered")
	}
	if c.add(span{0, regionSize - 1}); !c.all(size) || c.ranges() != 4 {
		t.Errorf("%d bytes in %d ranges are covered", c.covered, c.ranges())
	}
}

func TestCoverageForgetsWhatIsTooMuch(t *testing.T) {
	const limit, size = 100, 220
	shared := &budget{limit: limit}
	a, b := &coverage{budget: shared}, &coverage{budget: shared}
	// One volume may have more than its part.
	for i := range uint64(limit - 1) {
		a.add(span{2 * i, 2*i + 1})
	}
	b.add(span{0, 1})
	if _, forgot := a.complete(size); forgot || a.ranges() != limit {
		t.Errorf("%d bytes in %d ranges are covered", a.covered, a.ranges())
	}
	b.add(span{2, 3}, span{1, 2}, span{5, 6})
	if all, forgot := b.complete(6); all || !forgot || a.ranges() != limit || b.covered != 2 {
		t.Errorf("%d bytes in %d ranges are covered", b.covered, b.ranges())
	}
	if _, forgot := a.complete(size); forgot {
		t.Error("nothing of the first volume was forgotten")
	}
	if a.add(span{0, size}); !a.all(size) || a.ranges() != 2 {
		t.Errorf("%d ranges are left", a.ranges())
	}
	if b.add(span{2, 6}); !b.all(6) {
		t.Error("later ranges do not count")
	}
}

// ranges returns how many ranges all volumes have.
func (c *coverage) ranges() int { return int(c.budget.used.Load()) }

func (c *coverage) all(size uint64) bool {
	all, _ := c.complete(size)
	return all
}
