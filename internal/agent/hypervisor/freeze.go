// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"encoding/xml"
	"strings"
	"time"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Freeze records that the agent has frozen the guest's file systems. It is stored in the running domain's metadata, so that it
// survives a restart of the agent.
type Freeze struct {
	// Thaw is when they are thawed at the latest; zero means only on request.
	Thaw time.Time
}

// Note returns the freeze as an element for the domain's metadata.
func (f Freeze) Note() string { return launcherpod.FreezeNote(f.Thaw) }

// Freeze returns the freeze in the domain's metadata, or nil. One that cannot be parsed, which only a launcher can have written,
// is due for a thaw at once.
func (d *Domain) Freeze() *Freeze {
	note := d.note(launcherpod.FreezeURI, launcherpod.FreezeTag)
	if note == nil {
		return nil
	}
	found := &Freeze{}
	for _, a := range note.Attr {
		if a.Name.Local == "thaw" {
			var err error
			if found.Thaw, err = time.Parse(time.RFC3339, a.Value); err != nil {
				found.Thaw = time.Unix(0, 0)
			}
		}
	}
	return found
}

// ProbesPaused reports whether guestAgentPing probes are paused according to the domain's metadata.
func (d *Domain) ProbesPaused() bool {
	return d.note(launcherpod.ProbesURI, launcherpod.ProbesTag) != nil
}

// note returns an element of a running domain's metadata, or nil.
func (d *Domain) note(uri, tag string) *xml.StartElement {
	if !d.Active() || d.XML == nil || d.XML.Metadata == nil {
		return nil
	}
	decoder := xml.NewDecoder(strings.NewReader(d.XML.Metadata.XML))
	for {
		token, err := decoder.Token()
		if err != nil {
			return nil
		}
		if start, ok := token.(xml.StartElement); ok && start.Name.Space == uri && start.Name.Local == tag {
			return &start
		}
	}
}
