// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	"reflect"
	"testing"
	"time"
)

func TestSeedDeterminesRun(t *testing.T) {
	for seed := range uint64(500) {
		if a, b := Of(seed), Of(seed); !reflect.DeepEqual(a, b) {
			t.Fatalf("seed %d gives %v and %v", seed, a, b)
		}
	}
	if reflect.DeepEqual(Of(1).Injections, Of(1+uint64(Cells())).Injections) {
		t.Error("another seed with the same cell has the same injections")
	}
}

// A run may have a second fault, which may precede that of its cell.
func TestConsecutiveSeedsCoverAllCells(t *testing.T) {
	for _, base := range []uint64{0, 1_000_000_007} {
		met := map[cell]bool{}
		for seed := base; seed < base+uint64(Cells()); seed++ {
			met[cells[seed%uint64(Cells())]] = true
			found := false
			for _, i := range Of(seed).Injections {
				found = found || (cell{i.Fault, i.Phase}) == cells[seed%uint64(Cells())]
			}
			if !found {
				t.Fatalf("seed %d does not contain its cell", seed)
			}
		}
		if len(met) != Cells() {
			t.Errorf("%d seeds from %d cover %d cells", Cells(), base, len(met))
		}
	}
}

func TestInjections(t *testing.T) {
	two := 0
	for seed := range uint64(2000) {
		run := Of(seed)
		if len(run.Injections) == 2 {
			two++
			if run.Injections[0].Phase > run.Injections[1].Phase {
				t.Errorf("seed %d: %v comes before %v", seed, run.Injections[0], run.Injections[1])
			}
		}
		for _, i := range run.Injections {
			if i.Delay < 0 || i.Delay > window[i.Phase] || i.Lasts < shortest || i.Lasts > longest+50*time.Millisecond {
				t.Errorf("seed %d: %v", seed, i)
			}
		}
	}
	if two < 400 || two > 600 {
		t.Errorf("%d of 2000 runs have two faults, want a quarter", two)
	}
}

func TestCellsCoverFaultsAndPhases(t *testing.T) {
	faults, phases := map[Fault]bool{}, map[Phase]bool{}
	for _, c := range cells {
		faults[c.fault], phases[c.phase] = true, true
	}
	if len(faults) != len(Faults()) || len(phases) != len(Phases()) {
		t.Errorf("%d of %d faults and %d of %d phases", len(faults), len(Faults()), len(phases), len(Phases()))
	}
}
