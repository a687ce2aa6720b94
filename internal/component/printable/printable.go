// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package printable sanitizes texts of tenants, guests and launchers.
package printable

import (
	"strings"
	"unicode"
)

// Text returns the printable characters of a text, at most limit of them. The result is valid UTF-8.
func Text(s string, limit int) string { return text(s, limit, unicode.IsPrint) }

// Lines is Text for a text of several lines: line feeds stay.
func Lines(s string, limit int) string {
	return text(s, limit, func(r rune) bool { return r == '\n' || unicode.IsPrint(r) })
}

func text(s string, limit int, keep func(rune) bool) string {
	if len(s) > 4*limit {
		s = s[:4*limit]
	}
	s = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !keep(r) {
			return -1
		}
		return r
	}, s)
	runes := []rune(s)
	return string(runes[:min(len(runes), limit)])
}
