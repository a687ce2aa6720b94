// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package kubelet does for tests what a kubelet does on a node.
package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// currentVersion links to the directory with a volume's files.
// Source: kubernetes pkg/volume/util/atomic_writer.go
const currentVersion = "..data"

// VolumeDir is where a Pod's volume of a kind, such as kubernetes.io~secret, lies.
func VolumeDir(podsDir string, pod types.UID, kind, volume string) string {
	return filepath.Join(podsDir, string(pod), "volumes", kind, volume)
}

// WriteVolume gives a volume the files that it has from now on: they go into a directory of their own, a link to which
// replaces the old one in one step, and each name at the top is a link through that one.
func WriteVolume(podsDir string, pod types.UID, kind, volume string, files map[string]string) error {
	dir := VolumeDir(podsDir, pod, kind, volume)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, err := os.Readlink(filepath.Join(dir, currentVersion))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	version, err := os.MkdirTemp(dir, "..version-")
	if err != nil {
		return err
	}
	if err := writeFiles(version, files); err != nil {
		return err
	}
	next := filepath.Join(dir, "..data_tmp")
	if err := errors.Join(
		os.Symlink(filepath.Base(version), next), os.Rename(next, filepath.Join(dir, currentVersion)),
	); err != nil {
		return err
	}
	if old != "" {
		if err := os.RemoveAll(filepath.Join(dir, old)); err != nil {
			return err
		}
	}
	return linkNames(dir, files)
}

func writeFiles(dir string, files map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(files[name]), 0o440); err != nil {
			return err
		}
	}
	return nil
}

// linkNames makes what containers see of the current version.
func linkNames(dir string, files map[string]string) error {
	tops := map[string]bool{}
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		tops[top] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, "..") {
			continue
		}
		if !tops[name] {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		delete(tops, name)
	}
	for name := range tops {
		if err := os.Symlink(filepath.Join(currentVersion, name), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("show %s: %w", name, err)
		}
	}
	return nil
}
