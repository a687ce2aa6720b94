// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const created = "2026-01-01T00:00:00Z"

func TestProgramsAndPackagesAreListed(t *testing.T) {
	program, err := os.Executable() // the test itself has modules
	if err != nil {
		t.Fatal(err)
	}
	status := "Package: libexample++1\nVersion: 1:1.2+dfsg-3\nArchitecture: amd64\nDescription: example\n more: text\n"
	rootfs := filepath.Join(t.TempDir(), "rootfs.tar")
	write(t, rootfs, map[string]string{
		"./var/lib/dpkg/status.d/libexample++1": status,
		"./var/lib/dpkg/status":                 "Package: first\nVersion: 1\nArchitecture: all\n\n\nPackage: second\nVersion: 2\nArchitecture: all\n",
		"./usr/lib/os-release":                  "PRETTY_NAME=\"Debian\"\nID=debian\nVERSION_ID=\"13\"\n",
	})
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := run(out, "example", "v1", created, []string{program, rootfs}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two runs differ")
	}
	var d document
	if err := json.Unmarshal(first.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"stdlib", "libexample++1", "first", "second", "rootfs.tar", filepath.Base(program)} {
		if !slices.ContainsFunc(d.Packages, func(c component) bool { return c.Name == want && c.Version != "" }) {
			t.Errorf("%s is not listed", want)
		}
	}
	at := slices.IndexFunc(d.Packages, func(c component) bool { return c.Name == "libexample++1" })
	if url := d.Packages[at].References[0].Locator; url != "pkg:deb/debian/libexample%2B%2B1@1:1.2%2Bdfsg-3?arch=amd64&distro=debian-13" {
		t.Errorf("its URL is %s", url)
	}
	ids := map[string]bool{documentID: true}
	for _, c := range d.Packages {
		if ids[c.ID] {
			t.Errorf("%s is there twice", c.ID)
		}
		ids[c.ID] = true
	}
	for _, r := range d.Relationships {
		if !ids[r.From] || !ids[r.To] {
			t.Errorf("%v is about what is not in the document", r)
		}
	}
}

func TestRootFileSystemsOfWhichNothingIsKnown(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"no packages": {"./usr/lib/os-release": "ID=debian\nVERSION_ID=\"13\"\n"},
		"no release":  {"./var/lib/dpkg/status.d/libexample1": "Package: libexample1\nVersion: 1\nArchitecture: amd64\n"},
		"no version":  {"./var/lib/dpkg/status.d/libexample1": "Package: libexample1\n", "./usr/lib/os-release": "ID=debian\n"},
	} {
		rootfs := filepath.Join(t.TempDir(), "rootfs.tar")
		write(t, rootfs, files)
		if err := run(&bytes.Buffer{}, "example", "v1", created, []string{rootfs}); err == nil {
			t.Errorf("%s: there is no error", name)
		}
	}
}

func write(t *testing.T, archive string, files map[string]string) {
	t.Helper()
	f, err := os.Create(archive)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
