// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxText is the limit for a text from a guest or its launcher in the VMI's status, in characters.
const maxText = 256

// Clean sanitizes a text from a guest or its launcher for a status: the result is printable, valid UTF-8 of at most 256
// characters.
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

// CleanLine sanitizes a text that may contain parts from a guest or its launcher for a message: the result is one line of valid
// UTF-8 of at most limit bytes.
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
