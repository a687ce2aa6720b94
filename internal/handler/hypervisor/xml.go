// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Caps on the XML that a launcher or a peer describes a domain or a volume with. libvirtxml allocates up to 2 KiB for an element while
// it parses and keeps a quarter of that (measured with empty disks): 4 MiB of them would take more than a gigabyte.
const (
	// MaxXML is in bytes. The domain of a guest with 64 disks has about 60 KiB.
	MaxXML = 512 << 10
	// MaxXMLElements is above what a guest with 512 pinned vCPUs and 100 disks has.
	MaxXMLElements = 4096
	maxXMLDepth    = 32
	// maxAttributes is of one element. libvirt's have fewer than 20.
	maxAttributes = 64
	// maxParsing is how many descriptions are parsed at a time, which bounds the memory that is allocated and thrown away.
	maxParsing = 4
)

// ErrXML means that a description is larger than any that libvirt writes.
var ErrXML = errors.New("XML that is larger than libvirt's")

// parsing has room for those who parse. They wait for nothing but the CPU.
var parsing = make(chan struct{}, maxParsing)

// ReadXML parses a description after it has counted what is in it, so that its memory is bounded before it is allocated.
func ReadXML(text string, into interface{ Unmarshal(text string) error }) error {
	parsing <- struct{}{}
	defer func() { <-parsing }()
	if err := checkXML(text); err != nil {
		return err
	}
	return into.Unmarshal(text)
}

// checkXML counts elements without keeping any.
func checkXML(text string) error {
	// Each element has at least one "<", so this is cheap and bounds the work of what follows.
	if brackets := strings.Count(text, "<"); len(text) > MaxXML || brackets > 4*MaxXMLElements {
		return fmt.Errorf("%w: %d bytes with %d tags", ErrXML, len(text), brackets)
	}
	tokens := xml.NewDecoder(strings.NewReader(text))
	elements, depth := 0, 0
	for {
		token, err := tokens.RawToken()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch t := token.(type) {
		case xml.StartElement:
			elements++
			depth++
			if elements > MaxXMLElements || depth > maxXMLDepth || len(t.Attr) > maxAttributes {
				return fmt.Errorf("%w: element %s is number %d, %d deep, with %d attributes",
					ErrXML, Clean(t.Name.Local), elements, depth, len(t.Attr))
			}
		case xml.EndElement:
			depth--
		}
	}
}
