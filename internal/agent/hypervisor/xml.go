// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/vireo-project/vireo/internal/component/printable"
)

// Limits for XML from launchers and other nodes. libvirtxml allocates up to ElementParsing for each element while it
// parses and keeps elementKept of that (measured with empty disks): 4 MiB of empty disks would take more than a
// gigabyte.
const (
	// ElementParsing and elementKept are in bytes. ElementParsing is exported for the test in cmd/virt-handler/agent that
	// adds up the memory that launchers can make an agent use.
	ElementParsing, elementKept = 2 << 10, 512
	// MaxXML is the limit for the text in bytes. The domain of a guest with 64 disks has about 60 KiB.
	MaxXML = 512 << 10
	// MaxXMLElements is more than a guest with 512 pinned vCPUs and 100 disks needs.
	MaxXMLElements = 4096
	maxXMLDepth    = 32
	// maxAttributes is the limit for one element. libvirt's have fewer than 20.
	maxAttributes = 64
	// MaxParsing is how many texts are parsed at a time, which limits the memory that is allocated temporarily.
	MaxParsing = 4
)

// ErrXML means that XML exceeds the limits, which libvirt's own never does.
var ErrXML = errors.New("XML that is larger than libvirt's")

// parsing is a semaphore of MaxParsing slots. Its owners wait for nothing but the CPU.
var parsing = make(chan struct{}, MaxParsing)

// ReadXML checks the limits before it parses XML, so that it never allocates more memory than they allow. If the result
// is not small, it waits for memory; see Reserve.
func ReadXML(ctx context.Context, text string, into interface{ Unmarshal(text string) error }) error {
	var elements int
	err := parse(func() (err error) {
		elements, err = checkXML(text)
		return err
	})
	if err != nil {
		return err
	}
	if len(text)+elements*elementKept > SmallXML {
		if err := Reserve(ctx); err != nil {
			return err
		}
	}
	return parse(func() error { return into.Unmarshal(text) })
}

func parse(do func() error) error {
	parsing <- struct{}{}
	defer func() { <-parsing }()
	return do()
}

// checkXML checks the limits and returns the number of elements. It keeps none in memory.
func checkXML(text string) (elements int, err error) {
	// Each element has at least one "<", so this is a cheap limit for the work that follows.
	if brackets := strings.Count(text, "<"); len(text) > MaxXML || brackets > 4*MaxXMLElements {
		return 0, fmt.Errorf("%w: %d bytes with %d tags", ErrXML, len(text), brackets)
	}
	tokens := xml.NewDecoder(strings.NewReader(text))
	depth := 0
	for {
		token, err := tokens.RawToken()
		if errors.Is(err, io.EOF) {
			return elements, nil
		}
		if err != nil {
			return 0, err
		}
		switch t := token.(type) {
		case xml.StartElement:
			elements++
			depth++
			if elements > MaxXMLElements || depth > maxXMLDepth || len(t.Attr) > maxAttributes {
				return 0, fmt.Errorf("%w: element %s is number %d, %d deep, with %d attributes",
					ErrXML, Clean(t.Name.Local), elements, depth, len(t.Attr))
			}
		case xml.EndElement:
			depth--
		}
	}
}

// maxText is the limit for a text from a guest or its launcher in the VMI's status, in characters.
const maxText = 256

// Clean sanitizes a text from a guest or its launcher for a status: the result is printable, valid UTF-8 of at most 256
// characters.
func Clean(s string) string { return printable.Text(s, maxText) }

// CleanLine sanitizes a text that may contain parts from a guest or its launcher for a message: the result is one line
// of valid UTF-8 of at most limit bytes.
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

// Failure returns libvirt's message about a failure without what differs between equal failures: if it contains
// messages of QEMU's log, the last one about an error. A failed assertion says less than the error before it.
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
