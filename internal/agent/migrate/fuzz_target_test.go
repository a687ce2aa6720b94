// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migrate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/domain"
)

// goldenDomains are the texts of the domains that internal/domain builds.
func goldenDomains(tb testing.TB) []string {
	tb.Helper()
	files, err := filepath.Glob("../../domain/testdata/*.xml")
	if err != nil || len(files) == 0 {
		tb.Fatalf("%d golden domains: %v", len(files), err)
	}
	texts := make([]string, 0, len(files))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			tb.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}

// FuzzTarget checks that the domain for a target can be written, and that its disks have the sources that the target's
// agent chose. Both the running domain, which the launcher reports, and the domain that the target's agent built may be
// any text.
func FuzzTarget(f *testing.F) {
	for _, text := range goldenDomains(f) {
		f.Add(text, text)
	}
	f.Fuzz(func(t *testing.T, running, prepared string) {
		live, built := &libvirtxml.Domain{}, &libvirtxml.Domain{}
		if hypervisor.ReadXML(t.Context(), running, live) != nil || hypervisor.ReadXML(t.Context(), prepared, built) != nil {
			return
		}
		there, err := domain.ForTarget(live, built)
		if err != nil {
			return
		}
		if _, err := there.Marshal(); err != nil {
			t.Fatalf("it cannot be written: %v", err)
		}
		sources := map[string]*libvirtxml.DomainDiskSource{}
		for i := range built.Devices.Disks {
			if alias := built.Devices.Disks[i].Alias; alias != nil {
				sources[alias.Name] = built.Devices.Disks[i].Source
			}
		}
		for i := range there.Devices.Disks {
			disk := &there.Devices.Disks[i]
			if !domain.HasMedium(&live.Devices.Disks[i]) {
				continue // The guest has taken the medium out.
			}
			got, want := withoutSlices(disk.Source), withoutSlices(sources[disk.Alias.Name])
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("disk %.80q has another source: %s", disk.Alias.Name, diff)
			}
		}
	})
}

// withoutSlices returns a source without its slices: the running domain determines how much of a source the guest uses.
func withoutSlices(source *libvirtxml.DomainDiskSource) *libvirtxml.DomainDiskSource {
	if source == nil {
		return nil
	}
	whole := *source
	whole.Slices = nil
	return &whole
}
