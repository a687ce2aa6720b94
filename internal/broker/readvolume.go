// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// maxDepth bounds the nesting of directories, which the path of a downward API field determines.
const maxDepth = 8

// filesKinds are the kubelet's names of the kinds of volumes with files, and of the directories with a Pod's volumes of that kind.
// Sources: kubernetes pkg/volume/{configmap,secret,downwardapi,projected}.
var filesKinds = []string{"kubernetes.io~configmap", "kubernetes.io~secret", "kubernetes.io~downward-api", "kubernetes.io~projected"}

// maxKeys is the limit for the alternative keys of a request.
const maxKeys = 8

// volume is a volume of a Pod with files.
type volume struct{ podsDir, pod, kind, name string }

// readVolume reads files that the kubelet has written to a volume of the Pod. Of the volumes of a launcher Pod, only those that
// virt-controller adds for the guest's files can be read, and no token of the Pod's service account.
func (s *Server) readVolume(pod string, arguments json.RawMessage) (task, error) {
	var a brokerapi.ReadVolumeArguments
	if err := decode(arguments, &a); err != nil {
		return task{}, err
	}
	if !slices.Contains(filesKinds, a.Kind) || !launcherpod.HasGuestFiles(a.Volume) {
		return task{}, brokerapi.Refused("the volume %.64q of the kind %.64q has no files of a guest", a.Volume, a.Kind)
	}
	if len(a.Keys) > maxKeys {
		return task{}, brokerapi.Invalid("%d keys are too many", len(a.Keys))
	}
	return task{limit: s.volumes, run: func(context.Context) (answer, error) {
		// The volume alone does not show that the Pod is a launcher.
		libvirtd, err := s.pods.Libvirtd(pod)
		if err != nil {
			return answer{}, err
		}
		_ = libvirtd.Close()
		v := volume{podsDir: s.pods.Dir(), pod: pod, kind: a.Kind, name: a.Volume}
		files, err := v.read(a.Keys)
		return answer{result: brokerapi.ReadVolumeResult{Files: files}}, err
	}}, nil
}

// read returns the first of the keys that the volume has, or all files without keys.
func (v volume) read(keys []string) (map[string][]byte, error) {
	if len(keys) == 0 {
		return v.files()
	}
	return v.file(keys)
}

// open opens a volume's directory. Its entries are symlinks to files in it; an os.Root follows no others.
// Source: kubernetes pkg/volume/util/atomic_writer.go
func (v volume) open() (*os.Root, error) {
	root, err := os.OpenRoot(filepath.Join(v.podsDir, v.pod, "volumes", v.kind, v.name))
	if errors.Is(err, fs.ErrNotExist) {
		// Not wrapped: the volume is missing, not a key of its object.
		return nil, fmt.Errorf("the launcher Pod has no volume %q of kind %s: %s", v.name, v.kind, err.Error())
	}
	return root, err
}

// file returns the first of the keys that the volume has.
func (v volume) file(keys []string) (map[string][]byte, error) {
	root, err := v.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	for _, key := range keys {
		data, err := readCapped(root, key, brokerapi.MaxFileBytes)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case len(data) > brokerapi.MaxFileBytes:
			return nil, tooMuch("%s has more than %d bytes", key, brokerapi.MaxFileBytes)
		default:
			return map[string][]byte{key: data}, nil
		}
	}
	return nil, fs.ErrNotExist
}

func tooMuch(format string, arguments ...any) error {
	return &brokerapi.Error{Code: brokerapi.CodeTooMuch, Message: fmt.Sprintf(format, arguments...)}
}

// currentVersion is the symlink to the directory with a volume's current files. The kubelet creates a new directory for each
// change, so that an open directory has the files of one version.
const currentVersion = "..data"

// files returns all files, of one version.
func (v volume) files() (map[string][]byte, error) {
	root, err := v.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	version, err := root.OpenRoot(currentVersion)
	if err != nil {
		// Not wrapped, as above.
		return nil, fmt.Errorf("volume %q of the launcher Pod is not filled: %s", v.name, err.Error())
	}
	defer func() { _ = version.Close() }()
	r := fileReader{root: version, files: map[string][]byte{}, left: brokerapi.MaxFileBytes}
	if err := r.directory(".", maxDepth); err != nil {
		return nil, fmt.Errorf("read volume %q of the launcher Pod: %w", v.name, err)
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
		return tooMuch("%s is in more than %d directories", name, maxDepth)
	}
	dir, err := r.root.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	// One more than the limit, to detect that there are too many.
	entries, err := dir.ReadDir(brokerapi.MaxFiles + 1)
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
	case len(r.files) == brokerapi.MaxFiles:
		return tooMuch("there are more than %d files", brokerapi.MaxFiles)
	}
	data, err := readCapped(r.root, name, r.left)
	if err != nil {
		return err
	}
	if r.left -= int64(len(data)); r.left < 0 {
		return tooMuch("the files have more than %d bytes", brokerapi.MaxFileBytes)
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
