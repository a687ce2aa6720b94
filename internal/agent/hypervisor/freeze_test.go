// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

func TestFreezeOfADomain(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const uid = `<kubevirt xmlns="http://kubevirt.io"><metadata><uid>u</uid></metadata></kubevirt>`
	ours := func(attributes string) string {
		return uid + `<vireo:frozen xmlns:vireo="` + launcherpod.FreezeURI + `"` + attributes + `/>`
	}
	for name, c := range map[string]struct {
		metadata string
		state    State
		want     *Freeze
	}{
		"none":                      {uid, StateRunning, nil},
		"no metadata":               {"", StateRunning, nil},
		"with a time":               {ours(` thaw="2026-03-01T12:00:00Z"`), StateRunning, &Freeze{Thaw: at}},
		"of a guest that is paused": {ours(` thaw="2026-03-01T12:00:00Z"`), StatePaused, &Freeze{Thaw: at}},
		"without one":               {ours(""), StateRunning, &Freeze{}},
		"of a guest that ended":     {ours(""), StateEnded, nil},
		"without our namespace":     {uid + `<frozen thaw="2026-03-01T12:00:00Z"/>`, StateRunning, nil},
		"at no time":                {ours(` thaw="soon"`), StateRunning, &Freeze{Thaw: time.Unix(0, 0)}},
		"no XML":                    {uid + "<", StateRunning, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Domain{State: c.state, XML: &libvirtxml.Domain{Metadata: &libvirtxml.DomainMetadata{XML: c.metadata}}}
			if diff := cmp.Diff(c.want, d.Freeze()); diff != "" {
				t.Error(diff)
			}
		})
	}
	if note := (Freeze{Thaw: at.In(time.FixedZone("", 3600))}).Note(); note != `<frozen thaw='2026-03-01T12:00:00Z'/>` {
		t.Error(note)
	}
}

func TestPausedProbesOfADomain(t *testing.T) {
	const uid = `<kubevirt xmlns="http://kubevirt.io"><metadata><uid>u</uid></metadata></kubevirt>`
	const frozen = `<vireo:frozen xmlns:vireo="` + launcherpod.FreezeURI + `"/>`
	const paused = `<probes:paused xmlns:probes="` + launcherpod.ProbesURI + `"/>`
	for name, c := range map[string]struct {
		metadata string
		state    State
		want     bool
	}{
		"none":                      {uid + frozen, StateRunning, false},
		"alone":                     {paused, StateRunning, true},
		"beside others":             {uid + frozen + paused, StateRunning, true},
		"of a guest that is paused": {uid + paused, StatePaused, true},
		"of a guest that ended":     {uid + paused, StateEnded, false},
		"without our namespace":     {uid + `<paused/>`, StateRunning, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Domain{State: c.state, XML: &libvirtxml.Domain{Metadata: &libvirtxml.DomainMetadata{XML: c.metadata}}}
			if got := d.ProbesPaused(); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
