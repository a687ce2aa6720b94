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
	status := "Package: libexample1\nVersion: 1.2+dfsg-3\nArchitecture: amd64\nDescription: example\n more: text\n"
	rootfs := filepath.Join(t.TempDir(), "rootfs.tar")
	write(t, rootfs, "./var/lib/dpkg/status.d/libexample1", status)
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
	for _, want := range []string{"stdlib", "libexample1", "rootfs.tar", filepath.Base(program)} {
		if !slices.ContainsFunc(d.Packages, func(c component) bool { return c.Name == want && c.Version != "" }) {
			t.Errorf("%s is not listed", want)
		}
	}
	at := slices.IndexFunc(d.Packages, func(c component) bool { return c.Name == "libexample1" })
	if url := d.Packages[at].References[0].Locator; url != "pkg:deb/debian/libexample1@1.2%2Bdfsg-3?arch=amd64" {
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

func TestARootFileSystemWithoutPackagesFails(t *testing.T) {
	rootfs := filepath.Join(t.TempDir(), "rootfs.tar")
	write(t, rootfs, "./etc/passwd", "")
	if err := run(&bytes.Buffer{}, "example", "v1", created, []string{rootfs}); err == nil {
		t.Error("there is no error")
	}
}

func write(t *testing.T, archive, name, content string) {
	t.Helper()
	f, err := os.Create(archive)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
