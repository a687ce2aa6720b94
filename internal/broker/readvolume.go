// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// maxDepth bounds the nesting of directories, which the path of a downward API field determines.
const maxDepth = 8

// filesKinds are the kubelet's names of the kinds of volumes with files, and of the directories with a Pod's volumes of that kind.
// Sources: kubernetes pkg/volume/{configmap,secret,downwardapi,projected}.
var filesKinds = []string{"kubernetes.io~configmap", "kubernetes.io~secret", "kubernetes.io~downward-api", "kubernetes.io~projected"}

// readVolume reads files that the kubelet has written to a volume of the Pod. Of the volumes of a launcher Pod, only those that
// virt-controller adds for the guest's files can be read, and no token of the Pod's service account.
func (b *Broker) readVolume(pod string, a brokerapi.ReadVolumeArguments) (server.Task, error) {
	if !slices.Contains(filesKinds, a.Kind) || !layout.HasGuestFiles(a.Volume) {
		return server.Task{}, brokerapi.Refused("the volume %.64q of the kind %.64q has no files of a guest", a.Volume, a.Kind)
	}
	// The volume alone does not show that the Pod is a launcher: its libvirtd must be found. That may hang, while few volumes are read at a time.
	return b.ofLibvirtd(b.quick, pod, func(ctx context.Context, _ *os.File) (server.Answer, error) {
		return server.Task{Limit: b.volumes, Run: func(context.Context) (server.Answer, error) {
			files, err := readFiles(filepath.Join(b.Pods.Dir(), pod, "volumes", a.Kind, a.Volume))
			if err != nil {
				err = fmt.Errorf("read volume %q of kind %s of the launcher Pod: %w", a.Volume, a.Kind, err)
			}
			return server.Answer{Result: brokerapi.ReadVolumeResult{Files: files}}, err
		}}.Do(ctx, pod)
	}), nil
}

func tooMuch(format string, arguments ...any) error {
	return &brokerapi.Error{Code: brokerapi.CodeTooMuch, Message: fmt.Sprintf(format, arguments...)}
}

// currentVersion is the symlink to the directory with a volume's current files. The kubelet creates a new directory for each
// change, so that an open directory has the files of one version.
// Source: kubernetes pkg/volume/util/atomic_writer.go
const currentVersion = "..data"

// readFiles returns all files of a volume, of one version. An os.Root follows no link out of its directory.
func readFiles(volume string) (map[string][]byte, error) {
	root, err := os.OpenRoot(volume)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	version, err := root.OpenRoot(currentVersion)
	if err != nil {
		return nil, err
	}
	defer func() { _ = version.Close() }()
	files, left := map[string][]byte{}, brokerapi.MaxFileBytes
	return files, fs.WalkDir(few{version.FS()}, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case strings.Count(name, "/") >= maxDepth:
			return tooMuch("%s is in more than %d directories", name, maxDepth)
		case entry.IsDir():
			return nil
		case !entry.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a directory", name)
		case len(files) == brokerapi.MaxFiles:
			return tooMuch("there are more than %d files", brokerapi.MaxFiles)
		}
		files[name], err = readCapped(version, name, left)
		left -= len(files[name])
		return err
	})
}

// few is a file system that reads no directory with more than MaxFiles entries: a ConfigMap has room for a hundred thousand empty files.
type few struct{ fs.FS }

// ReadDir reads a directory.
func (f few) ReadDir(name string) ([]fs.DirEntry, error) {
	dir, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	entries, err := dir.(fs.ReadDirFile).ReadDir(brokerapi.MaxFiles + 1)
	if len(entries) > brokerapi.MaxFiles {
		return nil, tooMuch("%s has more than %d files", name, brokerapi.MaxFiles)
	}
	if errors.Is(err, io.EOF) {
		err = nil // the directory is empty
	}
	return entries, err
}

// readCapped reads a file that is not larger than a limit.
func readCapped(root *os.Root, name string, limit int) ([]byte, error) {
	// O_NONBLOCK: opening a pipe would block.
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(data) > limit {
		return nil, tooMuch("the files have more than %d bytes", brokerapi.MaxFileBytes)
	}
	return data, err
}
