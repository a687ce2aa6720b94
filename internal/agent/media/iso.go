// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
)

const (
	// isoBlock is the sector size of ISO 9660.
	isoBlock = 2048
	// maxLabelBytes is the size of the field for the label. Source: ECMA-119, 8.4.7.
	maxLabelBytes = 32
	// maxNameBytes is the longest name that the library writes correctly: a longer Rock Ridge entry does not fit into the directory
	// record, and for some lengths the library loses its continuation.
	maxNameBytes = 103
	// maxJolietName is the longest name in Joliet, in characters. Source: Joliet Specification, "File Identifier".
	maxJolietName = 64
)

// fitsJoliet reports whether no file is in a subdirectory or has a name that is too long for Joliet. The library's Joliet tree is
// correct for such media only: its directories point to the other tree, whose names are in another encoding.
func fitsJoliet(files map[string][]byte) bool {
	for name := range files {
		if path.Dir(name) != "." || utf8.RuneCountInString(name) > maxJolietName {
			return false
		}
	}
	return true
}

// buildISO returns an ISO 9660 image with unchanged file names: Rock Ridge for Linux, Joliet for Windows. The library needs a
// working directory: a private one in the agent's temporary directory, which is in memory, and which is removed afterwards.
func buildISO(label string, files map[string][]byte) (image []byte, err error) {
	dir, err := os.MkdirTemp("", "media-")
	if err != nil {
		return nil, fmt.Errorf("create a directory for the medium: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	tree := filepath.Join(dir, "tree")
	if err := writeTree(tree, files); err != nil {
		return nil, fmt.Errorf("write the medium's files: %w", err)
	}
	target, err := os.Create(filepath.Join(dir, "image")) //nolint:gosec // in a directory of its own
	if err != nil {
		return nil, fmt.Errorf("create the medium: %w", err)
	}
	defer func() { _ = target.Close() }()
	medium, err := iso9660.Create(file.New(target, false), 0, 0, isoBlock, tree)
	if err != nil {
		return nil, fmt.Errorf("create the medium: %w", err)
	}
	if err := medium.Finalize(iso9660.FinalizeOptions{
		RockRidge: true, Joliet: fitsJoliet(files), VolumeIdentifier: label,
	}); err != nil {
		return nil, fmt.Errorf("create the medium: %w", err)
	}
	return os.ReadFile(target.Name())
}

func writeTree(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the mode in the guest
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := os.MkdirAll(filepath.Join(dir, path.Dir(name)), 0o755); err != nil { //nolint:gosec // the mode in the guest
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), files[name], 0o644); err != nil { //nolint:gosec // the mode in the guest
			return err
		}
	}
	return nil
}
