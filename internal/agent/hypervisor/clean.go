// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"unicode/utf8"

	"github.com/vireo-project/vireo/internal/component/printable"
)

// maxText is the limit for a text from a guest or its launcher in the VMI's status, in characters.
const maxText = 256

// Clean sanitizes a text from a guest or its launcher for a status: the result is printable, valid UTF-8 of at most 256
// characters.
func Clean(s string) string { return printable.Text(s, maxText) }

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
