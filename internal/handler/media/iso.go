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
	// maxNameBytes is as long as a name may be that the library writes right: beyond, an entry of Rock Ridge no longer
	// fits into its directory's record, and its continuation is lost for some lengths.
	maxNameBytes = 103
	// maxJolietName is how many characters a name has in Joliet. Source: Joliet Specification, "File Identifier".
	maxJolietName = 64
)

// fitsJoliet says that no file lies in a directory or has a longer name than Joliet has. The library's Joliet tree is right
// for such media only: its directories lead into the other tree, whose names are in another encoding.
func fitsJoliet(files map[string][]byte) bool {
	for name := range files {
		if path.Dir(name) != "." || utf8.RuneCountInString(name) > maxJolietName {
			return false
		}
	}
	return true
}

// buildISO makes an ISO 9660 image with the names of files as they are, by Rock Ridge for Linux and Joliet for
// Windows. The library needs a directory to work in: it is private, empty afterwards, and lies in the agent's
// temporary directory, which is in memory.
func buildISO(label string, files map[string][]byte) (image []byte, err error) {
	dir, err := os.MkdirTemp("", "media-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the medium: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	tree := filepath.Join(dir, "tree")
	if err := writeTree(tree, files); err != nil {
		return nil, fmt.Errorf("write the medium's files: %w", err)
	}
	target, err := os.Create(filepath.Join(dir, "image")) //nolint:gosec // in a directory of its own
	if err != nil {
		return nil, fmt.Errorf("make the medium: %w", err)
	}
	defer func() { _ = target.Close() }()
	medium, err := iso9660.Create(file.New(target, false), 0, 0, isoBlock, tree)
	if err != nil {
		return nil, fmt.Errorf("make the medium: %w", err)
	}
	if err := medium.Finalize(iso9660.FinalizeOptions{
		RockRidge: true, Joliet: fitsJoliet(files), VolumeIdentifier: label,
	}); err != nil {
		return nil, fmt.Errorf("make the medium: %w", err)
	}
	return os.ReadFile(target.Name())
}

func writeTree(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the mode that the guest sees
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := os.MkdirAll(filepath.Join(dir, path.Dir(name)), 0o755); err != nil { //nolint:gosec // the mode that the guest sees
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), files[name], 0o644); err != nil { //nolint:gosec // the mode that the guest sees
			return err
		}
	}
	return nil
}
