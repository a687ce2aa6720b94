// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Content reads the files that the kubelet wrote to the launcher Pod's volumes.
type Content interface {
	// Secret returns the value of the first key that a Secret's volume has. The error wraps fs.ErrNotExist if it has none of them.
	Secret(volume string, keys ...string) ([]byte, error)
	// Files returns all files of a volume by their path in it. The error wraps ErrTooMuch if they are too large.
	Files(kind VolumeKind, volume string) (map[string][]byte, error)
}

// VolumeKind is the kubelet's name of a kind of volume, and of the directory with a Pod's volumes of that kind.
type VolumeKind string

// Kinds of volumes with files. Sources: kubernetes pkg/volume/{configmap,secret,downwardapi,projected}.
const (
	ConfigMapVolume   VolumeKind = "kubernetes.io~configmap"
	SecretVolume      VolumeKind = "kubernetes.io~secret" //nolint:gosec // a path, no secret
	DownwardAPIVolume VolumeKind = "kubernetes.io~downward-api"
	ProjectedVolume   VolumeKind = "kubernetes.io~projected"
)

// ErrTooMuch means that the files of a volume exceed the limits of a medium.
var ErrTooMuch = errors.New("too much for a medium")

const (
	// maxFiles and maxFileBytes bound what is read from a volume. A ConfigMap or a Secret cannot be larger; downward API fields that
	// repeat long annotations could.
	maxFiles     = 1000
	maxFileBytes = 2 << 20
	// maxDepth bounds the nesting of directories, which the path of a downward API field determines.
	maxDepth = 8
)

// PodContent reads the volumes of a Pod from the kubelet's directory on the node, so that the agent needs no permission to read
// Secrets.
type PodContent struct {
	// PodsDir is the kubelet's directory of Pods.
	PodsDir string
	// Pod is the launcher Pod's UID.
	Pod types.UID
}

// open opens a volume's directory. Its entries are symlinks to files in it; an os.Root follows no others.
// Source: kubernetes pkg/volume/util/atomic_writer.go
func (c PodContent) open(kind VolumeKind, volume string) (*os.Root, error) {
	root, err := os.OpenRoot(filepath.Join(c.PodsDir, string(c.Pod), "volumes", string(kind), volume))
	if errors.Is(err, fs.ErrNotExist) {
		// Not wrapped: the volume is missing, not a key of its object.
		return nil, fmt.Errorf("the launcher Pod has no volume %q of kind %s: %s", volume, kind, err.Error())
	}
	return root, err
}

// Secret returns the value of the first key that the volume has.
func (c PodContent) Secret(volume string, keys ...string) ([]byte, error) {
	root, err := c.open(SecretVolume, volume)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	for _, key := range keys {
		data, err := readCapped(root, key, maxCloudInit)
		if !errors.Is(err, fs.ErrNotExist) {
			return data, err
		}
	}
	return nil, fs.ErrNotExist
}

// currentVersion is the symlink to the directory with a volume's current files. The kubelet creates a new directory for each
// change, so that an open directory has the files of one version.
const currentVersion = "..data"

// Files returns all files of a volume, of one version.
func (c PodContent) Files(kind VolumeKind, volume string) (map[string][]byte, error) {
	root, err := c.open(kind, volume)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	version, err := root.OpenRoot(currentVersion)
	if err != nil {
		return nil, fmt.Errorf("volume %q of the launcher Pod is not filled: %w", volume, err)
	}
	defer func() { _ = version.Close() }()
	r := fileReader{root: version, files: map[string][]byte{}, left: maxFileBytes}
	if err := r.directory(".", maxDepth); err != nil {
		return nil, fmt.Errorf("read volume %q of the launcher Pod: %w", volume, err)
	}
	return r.files, nil
}

// fileReader reads the files of a directory within the limits.
type fileReader struct {
	root  *os.Root
	files map[string][]byte
	// left is how many more bytes may be read.
	left int64
}

func (r *fileReader) directory(name string, depth int) error {
	if depth == 0 {
		return fmt.Errorf("%w: %s is in more than %d directories", ErrTooMuch, name, maxDepth)
	}
	dir, err := r.root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	// One more than the limit, to detect that there are too many.
	entries, err := dir.ReadDir(maxFiles + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, entry := range entries {
		if err := r.entry(filepath.Join(name, entry.Name()), entry.Type(), depth); err != nil {
			return err
		}
	}
	return nil
}

func (r *fileReader) entry(name string, mode fs.FileMode, depth int) error {
	switch {
	case mode.IsDir():
		return r.directory(name, depth-1)
	case !mode.IsRegular():
		return fmt.Errorf("%s is neither a file nor a directory", name)
	case len(r.files) == maxFiles:
		return fmt.Errorf("%w: there are more than %d files", ErrTooMuch, maxFiles)
	}
	data, err := readCapped(r.root, name, r.left)
	if err != nil {
		return err
	}
	if r.left -= int64(len(data)); r.left < 0 {
		return fmt.Errorf("%w: the files have more than %d bytes", ErrTooMuch, maxFileBytes)
	}
	r.files[name] = data
	return nil
}

// readCapped reads a regular file. It returns limit+1 bytes if the file is larger than limit.
func readCapped(root *os.Root, name string, limit int64) ([]byte, error) {
	// O_NONBLOCK: opening a pipe would block.
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	return io.ReadAll(io.LimitReader(f, limit+1))
}
