// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package kubelet writes volumes for tests like the kubelet.
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

// currentVersion is the symbolic link to the directory with a volume's current files.
// Source: kubernetes pkg/volume/util/atomic_writer.go
const currentVersion = "..data"

// VolumeDir returns the directory of a Pod's volume. kind is a volume plugin, such as kubernetes.io~secret.
func VolumeDir(podsDir string, pod types.UID, kind, volume string) string {
	return filepath.Join(podsDir, string(pod), "volumes", kind, volume)
}

// WriteVolume replaces the files of a volume atomically: it writes them to a new directory and replaces the link
// currentVersion. Each name at the top level is a link through currentVersion.
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

// ReadVolume returns the files at the top level of a volume.
func ReadVolume(podsDir string, pod types.UID, kind, volume string) (map[string][]byte, error) {
	version := filepath.Join(VolumeDir(podsDir, pod, kind, volume), currentVersion)
	entries, err := os.ReadDir(version)
	if err != nil {
		// Not wrapped: the volume is missing, not a file in it.
		return nil, fmt.Errorf("no volume %s: %s", volume, err.Error())
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		if files[entry.Name()], err = os.ReadFile(filepath.Join(version, entry.Name())); err != nil {
			return nil, err
		}
	}
	return files, nil
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

// linkNames creates the links at the top level, and removes those of files that no longer exist.
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
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	return nil
}
