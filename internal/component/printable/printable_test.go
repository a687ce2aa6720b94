// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package printable_test

import (
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/component/printable"
)

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "",
		"Debian 13":                "Debian 13",
		"a\xffb":                   "ab",
		"a\u202eb\x1b\n":           "ab",
		strings.Repeat("x", 10000): strings.Repeat("x", 10),
		strings.Repeat("ü", 11):    strings.Repeat("ü", 10),
		strings.Repeat("😀", 11):    strings.Repeat("😀", 10),
	} {
		if got := printable.Text(text, 10); got != want {
			t.Errorf("%.40q: got %q, want %q", text, got, want)
		}
	}
}

func TestLines(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		"a\n\nb\n":                   "a\n\nb\n",
		"a\r\n\u202eb\x1b\t\u2028c":  "a\nbc",
		strings.Repeat("x\n", 10000): strings.Repeat("x\n", 5),
	} {
		if got := printable.Lines(text, 10); got != want {
			t.Errorf("%.40q: got %q, want %q", text, got, want)
		}
	}
}
