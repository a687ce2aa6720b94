// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command sbom writes a software bill of materials in SPDX 2.3 as JSON:
//
//	sbom -name NAME -version VERSION -created TIME FILE...
//
// A file is a Go program or a tar archive of a root file system. The modules of a program are read from it. The Debian
// packages of an archive are read from its var/lib/dpkg/status or var/lib/dpkg/status.d, and their release from its
// usr/lib/os-release.
package main

import (
	"archive/tar"
	"bufio"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	name := flag.String("name", "", "name of the document")
	version := flag.String("version", "", "version of the release")
	created := flag.String("created", "", "time of the release in RFC 3339")
	flag.Parse()
	if err := run(os.Stdout, *name, *version, *created, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// document is the part of an SPDX document that is written. Source: the JSON schema of SPDX 2.3.
type document struct {
	Version       string         `json:"spdxVersion"`
	License       string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []component    `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

// component is a package in the terms of SPDX: a program, a root file system, a module or a Debian package.
type component struct {
	ID         string      `json:"SPDXID"`
	Name       string      `json:"name"`
	Version    string      `json:"versionInfo,omitempty"`
	Location   string      `json:"downloadLocation"`
	Analyzed   bool        `json:"filesAnalyzed"`
	Concluded  string      `json:"licenseConcluded"`
	Declared   string      `json:"licenseDeclared"`
	Copyright  string      `json:"copyrightText"`
	Checksums  []checksum  `json:"checksums,omitempty"`
	References []reference `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const (
	documentID = "SPDXRef-DOCUMENT"
	unknown    = "NOASSERTION"
	// statusFile contains a paragraph for each Debian package in an image with dpkg.
	statusFile = "var/lib/dpkg/status"
	// statusDir contains a file for each Debian package in an image without dpkg, from which scanners read.
	statusDir = "var/lib/dpkg/status.d"
	// osRelease contains the name and version of the distribution. Source: os-release(5).
	osRelease = "usr/lib/os-release"
	// maxStatus bounds such a file in bytes.
	maxStatus = 16 << 20
)

func run(out io.Writer, name, version, created string, files []string) error {
	if _, err := time.Parse(time.RFC3339, created); err != nil || name == "" || version == "" || len(files) == 0 {
		return errors.Join(errors.New("give -name, -version, -created and files"), err)
	}
	d := &document{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: documentID, Name: name + "-" + version,
		Creation: creation{Created: created, Creators: []string{"Tool: vireo-sbom"}},
	}
	parts := map[string]component{}
	var sums []string
	for _, file := range files {
		whole, inside, err := inspect(file, version)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		sums = append(sums, whole.Checksums[0].Value)
		d.Packages = append(d.Packages, whole)
		d.relate(documentID, "DESCRIBES", whole.ID)
		for _, part := range inside {
			parts[part.ID] = part
			d.relate(whole.ID, "CONTAINS", part.ID)
		}
	}
	for _, part := range parts {
		d.Packages = append(d.Packages, part)
	}
	slices.SortFunc(d.Packages, func(a, b component) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(d.Relationships,
		func(a, b relationship) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	// The namespace has to be unique for each document.
	all := sha256.Sum256([]byte(strings.Join(sums, "")))
	d.Namespace = fmt.Sprintf("https://vireo.invalid/spdx/%s-%s-%x", name, version, all[:8])
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", " ")
	return encoder.Encode(d)
}

func (d *document) relate(from, kind, to string) {
	d.Relationships = append(d.Relationships, relationship{From: from, Type: kind, To: to})
}

// inspect returns the component that a file is, and those that are in it.
func inspect(file, version string) (component, []component, error) {
	sum, err := sumOf(file)
	if err != nil {
		return component{}, nil, err
	}
	whole := newComponent("File", filepath.Base(file), version)
	whole.Checksums = []checksum{{Algorithm: "SHA256", Value: sum}}
	if strings.HasSuffix(file, ".tar") {
		inside, err := debianPackages(file)
		return whole, inside, err
	}
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return component{}, nil, err
	}
	inside := []component{module("stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		inside = append(inside, module(m.Path, m.Version))
	}
	return whole, inside, nil
}

var invalid = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func newComponent(kind, name, version string) component {
	return component{
		ID:   "SPDXRef-" + kind + "-" + invalid.ReplaceAllString(name+"-"+version, "-"),
		Name: name, Version: version, Location: unknown, Concluded: unknown, Declared: unknown, Copyright: unknown,
	}
}

func withURL(c component, url string) component {
	c.References = []reference{{Category: "PACKAGE-MANAGER", Type: "purl", Locator: url}}
	return c
}

func module(name, version string) component {
	return withURL(newComponent("Go", name, version), "pkg:golang/"+name+"@"+version)
}

// debianPackages reads the packages of a root file system.
func debianPackages(file string) ([]component, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	archive := tar.NewReader(f)
	var packages []map[string]string
	var release map[string]string
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		switch name := path.Clean(header.Name); {
		case name == osRelease:
			var found []map[string]string
			if found, err = paragraphs(archive, "="); len(found) > 0 {
				release = found[0]
			}
		case name == statusFile, path.Dir(name) == statusDir:
			var found []map[string]string
			found, err = paragraphs(archive, ": ")
			packages = append(packages, found...)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(packages) == 0 {
		return nil, fmt.Errorf("there are no packages in %s and %s", statusFile, statusDir)
	}
	return components(packages, release)
}

// components returns the components of Debian packages. Scanners find the vulnerabilities of a package by the qualifier
// distro, which they expect as ID and version. Source: the type deb of https://github.com/package-url/purl-spec, which
// has no default repository.
func components(packages []map[string]string, release map[string]string) ([]component, error) {
	distro, version := strings.Trim(release["ID"], `"`), strings.Trim(release["VERSION_ID"], `"`)
	if distro == "" || version == "" {
		return nil, fmt.Errorf("%s has no ID and VERSION_ID", osRelease)
	}
	found := make([]component, 0, len(packages))
	for _, p := range packages {
		url := strings.ReplaceAll(fmt.Sprintf("pkg:deb/%s/%s@%s", distro, p["Package"], p["Version"]), "+", "%2B") +
			fmt.Sprintf("?arch=%s&distro=%s-%s", p["Architecture"], distro, version)
		found = append(found, withURL(newComponent("Debian", p["Package"], p["Version"]), url))
	}
	return found, nil
}

// paragraphs reads the paragraphs of a file, which empty lines separate. Of each it returns the fields that have one
// line: name, separator, value.
func paragraphs(from io.Reader, separator string) ([]map[string]string, error) {
	var found []map[string]string
	begins := true
	lines := bufio.NewScanner(io.LimitReader(from, maxStatus))
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), separator)
		switch {
		case lines.Text() == "":
			begins = true
			continue
		case !ok || strings.HasPrefix(name, " "):
			continue
		case begins:
			found = append(found, map[string]string{})
			begins = false
		}
		found[len(found)-1][name] = value
	}
	return found, lines.Err()
}

func sumOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
