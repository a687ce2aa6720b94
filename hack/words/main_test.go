// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"slices"
	"testing"
)

const page = `
| **before** | the section |

## We do not write … we write …

| not | but |
|---|---|
| **ask**, **hand over**; say | request |
| **wake** | enqueue |

| expression | because |
|---|---|
| ` + "`WakeOnLAN\\|asks the kubelet`" + ` | a protocol |
`

const source = `package p

// F asks the
// server, and hands
// over what it says.
func F() { AskAll("Nobody wakes it", asking, task, wokenUp) }

// It asks the kubelet: WakeOnLAN wakes it.
const askedAlready, basket, WakeUp = 1, 2, 3
`

func TestFind(t *testing.T) {
	r, err := parseRules(page)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`p.go:3: "ask": write request`, `p.go:4: "hand over": write request`,
		`p.go:6: "ask": write request`, `p.go:6: "wake": write enqueue`, `p.go:6: "ask": write request`,
		`p.go:9: "ask": write request`, `p.go:9: "wake": write enqueue`,
	}
	if got := r.find("p.go", []byte(source)); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestPagesWithoutRules(t *testing.T) {
	for _, page := range []string{"", "\n## We do not write\n| **ask** | request |\n", "\n## We do not write\n| `a` | b |\n", page + "| `(` | c |\n"} {
		if _, err := parseRules(page); err == nil {
			t.Errorf("%q has rules", page)
		}
	}
}
