// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Limits for XML from launchers and other nodes. libvirtxml allocates up to ElementParsing for each element while it parses and
// keeps elementKept of that (measured with empty disks): 4 MiB of empty disks would take more than a gigabyte.
const (
	// ElementParsing and elementKept are in bytes. ElementParsing is exported for the test in cmd/virt-handler/agent that adds up the
	// memory that launchers can make an agent use.
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

// ReadXML checks the limits before it parses XML, so that it never allocates more memory than they allow. If the result is not
// small, it waits for memory; see Reserve.
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
