// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCredentialsKeeper(t *testing.T) {
	first := Credentials{Passwords: map[string]string{"root": "a"}}
	second := Credentials{Passwords: map[string]string{"root": "b"}}
	done := &CredentialsState{Synchronized: true}
	failed := errors.New("no such user")
	start := time.Unix(1000, 0)
	keeper := &CredentialsKeeper{}
	for _, step := range []struct {
		name            string
		after           time.Duration
		wanted          Credentials
		readErr, goneIn error
		forget          bool
		applies         bool
		want            *CredentialsState
	}{
		{name: "at once", wanted: first, applies: true, want: done},
		{name: "not again", after: time.Minute, wanted: first},
		{name: "after a change", after: 2 * time.Minute, wanted: second, applies: true, want: done},
		{name: "not before five minutes", after: 6 * time.Minute, wanted: second},
		{name: "after five minutes", after: 8 * time.Minute, wanted: second, applies: true, want: done},
		{name: "a Secret that cannot be read", after: 9 * time.Minute, readErr: failed, want: &CredentialsState{Message: "no such user"}},
		{name: "and can again", after: 10 * time.Minute, wanted: second, applies: true, want: done},
		{name: "a guest that refuses", after: 16 * time.Minute, wanted: second, goneIn: failed, applies: true,
			want: &CredentialsState{Message: "no such user"}},
		{name: "a guest that refuses twice", after: 16 * time.Minute, wanted: second, goneIn: errors.Join(failed, failed), applies: true,
			want: &CredentialsState{Message: "no such user; no such user"}},
		{name: "and is tried again", after: 16 * time.Minute, wanted: second, applies: true, want: done},
		{name: "another agent", after: 17 * time.Minute, wanted: second, forget: true, applies: true, want: done},
	} {
		t.Run(step.name, func(t *testing.T) {
			if step.forget {
				keeper.Forget()
			}
			applied := false
			got := keeper.Step(start.Add(step.after), func() (Credentials, error) { return step.wanted, step.readErr }, func(c Credentials) error {
				applied = true
				if diff := cmp.Diff(step.wanted, c); diff != "" {
					t.Error(diff)
				}
				return step.goneIn
			})
			if diff := cmp.Diff(step.want, got); diff != "" || applied != step.applies {
				t.Errorf("applied %v, want %v: %s", applied, step.applies, diff)
			}
		})
	}
}
