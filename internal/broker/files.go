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
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// guestDevices are the devices that QEMU opens in the Pod.
var guestDevices = []string{"/dev/kvm", "/dev/net/tun", "/dev/vhost-net", "/dev/vhost-vsock", layout.PostCopyDevice}

// ownDevices makes QEMU's user the owner of the devices in the Pod's /dev. The runtime creates them with the owner that
// they have on the node, where vhost-net and sometimes kvm belong to root. It never changes the owner of the node's own
// device files.
func (b *Broker) ownDevices(pod string, _ server.None) (server.Task, error) {
	return b.inRoot(b.quick, pod, func(root *podprocess.Root) (server.Output, error) {
		var errs []error
		for _, device := range guestDevices {
			// The broker's path of the node's device.
			onNode := filepath.Join(b.DevDir, strings.TrimPrefix(device, "/dev/"))
			if err := ownDeviceAt(root, device, onNode); err != nil {
				errs = append(errs, fmt.Errorf("change the owner of %s in the launcher Pod to user %d: %w", device, layout.QEMUUser,
					err))
			}
		}
		return server.Output{}, errors.Join(errs...)
	}), nil
}

// ownDeviceAt makes QEMU's user the owner of a device of the Pod, if the Pod has it.
func ownDeviceAt(root *podprocess.Root, path, onNode string) error {
	f, err := root.Open(path, unix.O_PATH)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return ownDevice(f, onNode)
}

// ownDevice makes QEMU's user the owner of a device file of the Pod. It returns an error if the file is the node's own,
// and does nothing if it is another device than the node's. The kubelet allocates a device only if the node has it.
func ownDevice(f *os.File, onNode string) error {
	var node, stat unix.Stat_t
	err := unix.Stat(onNode, &node)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err := errors.Join(err, unix.Fstat(int(f.Fd()), &stat)); err != nil {
		return fmt.Errorf("compare it with the node's %s: %w", onNode, err)
	}
	const othersReadWrite = 0o006
	isDevice := stat.Mode&unix.S_IFMT == unix.S_IFCHR && node.Mode&unix.S_IFMT == unix.S_IFCHR && stat.Rdev == node.Rdev
	if !isDevice || stat.Uid == layout.QEMUUser || stat.Mode&othersReadWrite == othersReadWrite {
		return nil
	}
	if node.Dev == stat.Dev && node.Ino == stat.Ino {
		return errors.New("it is the node's own device file")
	}
	return unix.Fchownat(int(f.Fd()), "", layout.QEMUUser, layout.QEMUUser, unix.AT_EMPTY_PATH)
}

// mountsBefore is how long before a Pod's own directory the kubelet may create a directory of the node for the Pod,
// because it starts both at the same time. Source: kubernetes pkg/kubelet/kubelet.go (makePodDataDirs) and
// pkg/kubelet/volumemanager.
const mountsBefore = 10 * time.Second

// giveHostDir makes the user that QEMU runs as the owner of a directory of the node, if the kubelet created it for this
// Pod. It does nothing with an older directory.
func (b *Broker) giveHostDir(pod string, a brokerapi.GiveHostDirArguments) (server.Task, error) {
	if !isIn(layout.DisksDir, a.Directory) {
		return server.Task{}, brokerapi.Refused("%.256q is not where a directory of the node is mounted", a.Directory)
	}
	return b.inRoot(b.storage, pod, func(root *podprocess.Root) (server.Output, error) {
		since, err := b.Pods.Created(pod)
		if err != nil || since.IsZero() {
			return server.Output{}, err
		}
		if err := root.ChownNewDirectory(a.Directory, layout.QEMUUser, since.Add(-mountsBefore)); err != nil {
			return server.Output{}, fmt.Errorf("check whether the kubelet created %s: %w", a.Directory, err)
		}
		return server.Output{}, nil
	}), nil
}

// openFile opens a file of an image, an overlay, or a file of the persistent state, for reading.
func (b *Broker) openFile(pod string, a brokerapi.OpenFileArguments) (server.Task, error) {
	if strings.ContainsRune(a.Name, 0) || a.Name == "" {
		return server.Task{}, brokerapi.Invalid("%.256q is no name of a file", a.Name)
	}
	// In a directory that the Pod can write to, symlinks may lead anywhere.
	written := a.Mount == layout.StateDir || a.Mount == layout.TrackedDisksDir
	if !written && a.Mount != layout.KernelBootDir && !isIn(layout.ContainerDisksDir, a.Mount) {
		return server.Task{}, brokerapi.Refused(
			"%.256q has neither an image, nor overlays, nor the persistent state of a guest", a.Mount)
	}
	return b.inRoot(b.storage, pod, func(root *podprocess.Root) (server.Output, error) {
		if written {
			file, err := root.OpenWithin(a.Mount, a.Name, unix.S_IFREG)
			return server.Output{File: file}, err
		}
		file, err := root.OpenRegular(a.Mount, a.Name)
		return server.Output{File: file}, err
	}), nil
}

// isIn reports whether a path of the Pod is that of an entry of a directory. It accepts clean paths only.
func isIn(dir, name string) bool {
	return path.Dir(name) == dir && path.Clean(name) == name && !strings.ContainsRune(name, 0)
}

// openSocket connects to a socket of the Pod.
func (b *Broker) openSocket(pod string, a brokerapi.OpenSocketArguments) (server.Task, error) {
	t := server.Task{Limit: b.quick, Run: func(context.Context) (server.Output, error) {
		conn, process, err := b.Pods.Connect(pod, a.Name)
		if err != nil {
			return server.Output{}, err
		}
		_ = process.Close()
		defer func() { _ = conn.Close() }()
		file, err := conn.File()
		return server.Output{File: file}, err
	}}
	if a.Wait {
		t.Wait = func(ctx context.Context) error { return b.Pods.Wait(ctx, pod, a.Name) }
	}
	return t, nil
}

// maxDepth bounds the nesting of directories, which the path of a downward API field determines.
const maxDepth = 8

// filesKinds are the kubelet's names of the kinds of volumes with files, and of the directories with a Pod's volumes of
// that kind. Sources: kubernetes pkg/volume/{configmap,secret,downwardapi,projected}.
var filesKinds = []string{"kubernetes.io~configmap", "kubernetes.io~secret", "kubernetes.io~downward-api",
	"kubernetes.io~projected"}

// readVolume reads files that the kubelet has written to a volume of the Pod. Of the volumes of a launcher Pod, only
// those that virt-controller adds for the guest's files can be read, and no token of the Pod's service account.
func (b *Broker) readVolume(pod string, a brokerapi.ReadVolumeArguments) (server.Task, error) {
	if !slices.Contains(filesKinds, a.Kind) || !layout.HasGuestFiles(a.Volume) {
		return server.Task{}, brokerapi.Refused("the volume %.64q of the kind %.64q has no files of a guest", a.Volume,
			a.Kind)
	}
	// The volume alone does not show that the Pod is a launcher: its libvirtd must be found. That may hang, while few
	// volumes are read at a time.
	return b.ofLibvirtd(b.quick, pod, func(ctx context.Context, _ *os.File) (server.Output, error) {
		return server.Task{Limit: b.volumes, Run: func(context.Context) (server.Output, error) {
			files, err := readFiles(filepath.Join(b.Pods.Dir(), pod, "volumes", a.Kind, a.Volume))
			if err != nil {
				err = fmt.Errorf("read volume %q of kind %s of the launcher Pod: %w", a.Volume, a.Kind, err)
			}
			return server.Output{Result: brokerapi.ReadVolumeResult{Files: files}}, err
		}}.Do(ctx, pod)
	}), nil
}

func tooMuch(format string, arguments ...any) error {
	return &brokerapi.Error{Code: brokerapi.CodeTooMuch, Message: fmt.Sprintf(format, arguments...)}
}

// currentVersion is the symlink to the directory with a volume's current files. The kubelet creates a new directory for
// each change, so that an open directory has the files of one version. Source: kubernetes
// pkg/volume/util/atomic_writer.go
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

// few is a file system that reads no directory with more than MaxFiles entries: a ConfigMap has room for a hundred
// thousand empty files.
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
