// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package backup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRecordOfChanges(t *testing.T) {
	all := []string{"root", "data"}
	for name, tc := range map[string]struct {
		intent                     Intent
		changes                    Changes
		checkpoint, since, because string
	}{
		"nothing is requested": {Intent{}, Changes{Tracked: all}, "", "", ""},
		"the first one":        {Intent{Checkpoint: "b"}, Changes{Tracked: all}, "b", "", ""},
		"nothing is tracked":   {Intent{Checkpoint: "b", Since: "a"}, Changes{}, "", "", "not tracked of the volumes root, data"},
		"one disk is not tracked": {
			Intent{Checkpoint: "b", Since: "a"}, Changes{Tracked: all[:1], Checkpoints: map[string][]string{"a": all}},
			"", "", "not tracked of the volume data",
		},
		"an incremental one": {
			Intent{Checkpoint: "b", Since: "a"}, Changes{Tracked: all, Checkpoints: map[string][]string{"a": {"data", "other", "root"}}}, "b", "a", "",
		},
		"the guest was restarted": {
			Intent{Checkpoint: "b", Since: "a"}, Changes{Tracked: all, Checkpoints: map[string][]string{"c": all}},
			"b", "", "does not have the checkpoint a: it was started after that, or migrated without it, or had more checkpoints than a guest keeps",
		},
		"the checkpoint lacks a disk": {
			Intent{Checkpoint: "b", Since: "a"}, Changes{Tracked: all, Checkpoints: map[string][]string{"a": all[1:]}},
			"b", "", "the checkpoint a does not have the volume root",
		},
		"since without a checkpoint": {
			Intent{Since: "a"}, Changes{Tracked: all, Checkpoints: map[string][]string{"a": all}}, "", "", "",
		},
	} {
		tc.intent.ID, tc.intent.Volumes = "x", all
		action, got := Decide(View{Now: now, Intent: &tc.intent, Changes: tc.changes})
		if action != Request || got.ID != "x" || got.Stage != Requested || got.Checkpoint != tc.checkpoint || got.Since != tc.since {
			t.Errorf("%s: action %d with %+v", name, action, got)
		}
		if tc.because == "" && got.FullBecause != "" || !strings.Contains(got.FullBecause, tc.because) {
			t.Errorf("%s: because %q", name, got.FullBecause)
		}
		if got.Incremental() != (tc.since != "") {
			t.Errorf("%s: incremental: %t", name, got.Incremental())
		}
	}
	many := &Intent{Checkpoint: "b", Volumes: strings.Split("abcdefg", "")}
	if got := many.record(now, Changes{}).FullBecause; !strings.HasSuffix(got, "the volumes a, b, c, d, e and 2 more") {
		t.Errorf("seven volumes: %q", got)
	}
}

func TestObsolete(t *testing.T) {
	intent := &Intent{ID: "x", Checkpoint: "new", Since: "last", Kept: []string{"last", "of another tracker"}}
	changes := Changes{Checkpoints: map[string][]string{"of another tracker": nil, "last": nil, "failed": nil, "earlier": nil, "new": nil}}
	if diff := cmp.Diff([]string{"earlier", "failed"}, intent.Obsolete(Record{Checkpoint: "new", Since: "last"}, changes)); diff != "" {
		t.Error(diff)
	}
	if got := intent.Obsolete(Record{}, changes); got != nil {
		t.Errorf("a backup without a checkpoint deletes %v", got)
	}
}
