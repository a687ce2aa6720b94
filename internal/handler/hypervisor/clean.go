// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"strings"
	"unicode"
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
