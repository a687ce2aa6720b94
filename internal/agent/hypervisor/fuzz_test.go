// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor_test

import (
	"strings"
	"testing"
	"time"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// FuzzReadXML checks that ReadXML respects its limits, and that what it returns can be encoded again.
func FuzzReadXML(f *testing.F) {
	f.Add(`<domain type='kvm'><name>ns_vm</name><devices><disk type='file' device='disk'><source file='/x'/><alias name='ua-root'/></disk></devices></domain>`)
	f.Add(`<domain><devices>` + strings.Repeat("<disk/>", 64) + `</devices></domain>`)
	f.Add(`<domain><metadata><vireo:freeze xmlns:vireo='` + launcherpod.FreezeURI + `'/></metadata></domain>`)
	f.Add(`</domain></domain><domain>`)
	f.Fuzz(func(t *testing.T, text string) {
		read := &libvirtxml.Domain{}
		if err := hypervisor.ReadXML(t.Context(), text, read); err != nil {
			return
		}
		if elements := strings.Count(text, "<"); len(text) > hypervisor.MaxXML || elements > 4*hypervisor.MaxXMLElements {
			t.Errorf("%d bytes with %d tags are read", len(text), elements)
		}
		if _, err := read.Marshal(); err != nil {
			t.Errorf("it cannot be written: %v", err)
		}
	})
}

// FuzzFreeze checks that a freeze that was read from a domain's metadata is the same after it is written and read
// again.
func FuzzFreeze(f *testing.F) {
	uri := "xmlns:v='" + launcherpod.FreezeURI + "'"
	f.Add("<v:" + launcherpod.FreezeTag + " " + uri + " thaw='2026-01-02T03:04:05Z'/>")
	f.Add("<v:" + launcherpod.FreezeTag + " " + uri + "/>")
	f.Add("<other/><v:" + launcherpod.FreezeTag + " " + uri + " thaw='never'/>")
	f.Fuzz(func(t *testing.T, metadata string) {
		d := &hypervisor.Domain{State: hypervisor.StateRunning,
			XML: &libvirtxml.Domain{Metadata: &libvirtxml.DomainMetadata{XML: metadata}}}
		found := d.Freeze()
		if found == nil {
			return
		}
		if year := found.Thaw.UTC().Year(); year < 0 || year > 9999 {
			return // RFC 3339 has no such year.
		}
		note := strings.Replace(found.Note(), "<"+launcherpod.FreezeTag,
			"<"+launcherpod.FreezeTag+" xmlns='"+launcherpod.FreezeURI+"'", 1)
		d.XML.Metadata.XML = note
		if again := d.Freeze(); again == nil || !again.Thaw.Equal(found.Thaw.Truncate(time.Second)) {
			t.Errorf("%s: %v, and then %v", note, found, again)
		}
	})
}
