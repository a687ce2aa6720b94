// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package observe

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vireo-project/vireo/internal/domain"
)

func TestRealtimeCapable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sched_rt_runtime_us")
	if got, err := realtimeCapable(path); got || err != nil {
		t.Errorf("a kernel without the setting: %t, %v", got, err)
	}
	for text, want := range map[string]bool{"-1\n": true, "950000\n": false, "": false} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := realtimeCapable(path); got != want || err != nil {
			t.Errorf("%q: %t, %v", text, got, err)
		}
	}
	if _, err := realtimeCapable(t.TempDir()); err == nil {
		t.Error("no error for a directory")
	}
}

func TestReadTopology(t *testing.T) {
	got, err := ReadTopology("testdata")
	if err != nil {
		t.Fatal(err)
	}
	want := []domain.NUMACellFact{
		{ID: 0, CPUs: []domain.CPUFact{{ID: 0, Siblings: []uint{0, 2}}, {ID: 2, Siblings: []uint{0, 2}}}},
		{ID: 1, CPUs: []domain.CPUFact{{ID: 1, Siblings: []uint{1, 3}}, {ID: 3, Siblings: []uint{3}}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := ReadTopology(t.TempDir()); err == nil {
		t.Error("no error for a missing file")
	}
}
