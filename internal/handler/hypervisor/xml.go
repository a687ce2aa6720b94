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

// Caps on the XML that a launcher or a peer describes a domain or a volume with. libvirtxml allocates up to ElementParsing for an element
// while it parses and keeps elementKept of that (measured with empty disks): 4 MiB of them would take more than a gigabyte.
const (
	// ElementParsing and elementKept are in bytes.
	ElementParsing, elementKept = 2 << 10, 512
	// MaxXML is in bytes. The domain of a guest with 64 disks has about 60 KiB.
	MaxXML = 512 << 10
	// MaxXMLElements is above what a guest with 512 pinned vCPUs and 100 disks has.
	MaxXMLElements = 4096
	maxXMLDepth    = 32
	// maxAttributes is of one element. libvirt's have fewer than 20.
	maxAttributes = 64
	// MaxParsing is how many descriptions are parsed at a time, which bounds the memory that is allocated and thrown away.
	MaxParsing = 4
)

// ErrXML means that a description is larger than any that libvirt writes.
var ErrXML = errors.New("XML that is larger than libvirt's")

// parsing has room for those who parse. They wait for nothing but the CPU.
var parsing = make(chan struct{}, MaxParsing)

// ReadXML parses a description after it has counted what is in it, so that its memory is bounded before it is allocated. For one that is not
// small it waits for memory; see Reserve.
func ReadXML(ctx context.Context, text string, into interface{ Unmarshal(text string) error }) error {
	var elements int
	err := parse(func() (err error) {
		elements, err = checkXML(text)
		return err
	})
	if err != nil {
		return err
	}
	if len(text)+elements*elementKept > SmallDescription {
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

// checkXML counts elements without keeping any.
func checkXML(text string) (elements int, err error) {
	// Each element has at least one "<", so this is cheap and bounds the work of what follows.
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
