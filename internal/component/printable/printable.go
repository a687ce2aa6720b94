// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package printable sanitizes texts of tenants, guests and launchers.
package printable

import (
	"strings"
	"unicode"
)

// Text returns the printable characters of a text, at most limit of them. The result is valid UTF-8.
func Text(s string, limit int) string {
	if len(s) > 4*limit {
		s = s[:4*limit]
	}
	s = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
	runes := []rune(s)
	return string(runes[:min(len(runes), limit)])
}
