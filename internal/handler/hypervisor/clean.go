// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxText is the length in characters of a text that a guest or its launcher can put into the VMI's status.
const maxText = 256

// Clean makes a text from a guest or its launcher fit for a status: printable, valid UTF-8, of a bounded length.
func Clean(s string) string {
	if len(s) > 4*maxText {
		s = s[:4*maxText]
	}
	s = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
	runes := []rune(s)
	return string(runes[:min(len(runes), maxText)])
}

// CleanLine makes a text that a guest or its launcher may have had a hand in fit for a message: one line of valid UTF-8, cut to
// a number of bytes.
func CleanLine(text string, limit int) string {
	out := make([]byte, 0, min(len(text), limit))
	for _, r := range text {
		if r < ' ' || r == 0x7f {
			r = ' '
		}
		if len(out)+utf8.RuneLen(r) > limit {
			break
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out)
}
