// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"regexp"
	"strings"
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

// qemuLine is the beginning of a message in QEMU's log: the time, the name of the process, or both.
var qemuLine = regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z (?:qemu-(?:system-\w+|kvm): )?|qemu-(?:system-\w+|kvm): `)

// assertion is a failed assertion of QEMU, with its place in QEMU's source.
var assertion = regexp.MustCompile(`^\S+\.[ch]:\d+: \w+: (Assertion )`)

// Failure returns libvirt's message about a failure without what differs between equal failures: if it contains messages of QEMU's
// log, the last one about an error. A failed assertion says less than the error before it.
func Failure(message string) string {
	at := qemuLine.FindStringIndex(message)
	if at == nil {
		return message
	}
	failure := ""
	for _, line := range qemuLine.Split(message[at[0]:], -1) {
		// What follows in further lines belongs to the message.
		line = strings.Join(strings.Fields(line), " ")
		short := assertion.ReplaceAllString(line, "$1")
		if line == "" || strings.Contains(line, "warning: ") || short != line && failure != "" {
			continue
		}
		failure = strings.TrimPrefix(short, "error: ")
	}
	if failure == "" {
		return strings.TrimRight(message[:at[0]], ": ")
	}
	return failure
}
