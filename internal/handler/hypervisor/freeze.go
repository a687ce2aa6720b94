// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"encoding/xml"
	"strings"
	"time"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Freeze says that the guest's file systems were frozen by us. It is noted in the running domain's metadata, where the next agent finds
// it when it looks for the guest.
type Freeze struct {
	// Thaw is when they are to be thawed at the latest; zero means when somebody asks for it.
	Thaw time.Time
}

// Note is the freeze as an element for the domain's metadata.
func (f Freeze) Note() string { return launcherpod.FreezeNote(f.Thaw) }

// Freeze is the note in the domain's metadata, or nil. One that cannot be read, which only a launcher can have written, is
// thawed at once.
func (d *Domain) Freeze() *Freeze {
	if !d.Active() || d.XML == nil || d.XML.Metadata == nil {
		return nil
	}
	decoder := xml.NewDecoder(strings.NewReader(d.XML.Metadata.XML))
	for {
		token, err := decoder.Token()
		if err != nil {
			return nil
		}
		start, ok := token.(xml.StartElement)
		if !ok || start.Name.Space != launcherpod.FreezeURI || start.Name.Local != launcherpod.FreezeTag {
			continue
		}
		found := &Freeze{}
		for _, a := range start.Attr {
			if a.Name.Local == "thaw" {
				if found.Thaw, err = time.Parse(time.RFC3339, a.Value); err != nil {
					found.Thaw = time.Unix(0, 0)
				}
			}
		}
		return found
	}
}
