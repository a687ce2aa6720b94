// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package broker is virt-broker: the verbs of package brokerapi about the sockets, files, volumes and processes of
// launcher Pods. Packages network and device have those of the two other programs of its Pod, and package server serves
// them to virt-handler, and to no other user. The programs have every privilege on the node that the agent needs, so
// they trust virt-handler with nothing:
//
//   - A request names a Pod by its UID. Package pods derives from the kubelet's directories and the kernel whether it
//     is a launcher.
//   - What a verb does affects that Pod only. Names and numbers in a request are checked against what a launcher Pod
//     has.
//   - Descriptors that are passed are of sockets, of regular files for reading, and of processes to watch. None leads
//     to another file.
//   - Every verb is idempotent: it completes what was interrupted. Requests are limited in size, time and number, for
//     each Pod and in all.
//
// To read it: verbs.go of brokerapi; package server; how a Pod's libvirtd is found, in pods.go and peer.go of pods; how
// its files are reached, in podprocess.go and files.go of podprocess; then the verbs; and devicerule, for the device
// files of hotplugged volumes.
package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"

	"github.com/vireo-project/vireo/internal/broker/devicerule"
	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// largeInAll is how many requests whose response is large are in flight. One takes less than 10 MiB. They are short, as
// the files of these volumes are in memory.
const largeInAll = 8

// Options are the settings of a Broker.
type Options struct {
	// Pods are the launcher Pods of the node.
	Pods *pods.Pods
	// PodLogsDir is the kubelet's directory with the logs of Pods.
	PodLogsDir string
	// DevDir is the path at which the node's /dev is mounted.
	DevDir string
	// PublishedDevices is the directory with the block devices of CSI drivers.
	PublishedDevices string
	// ExclusiveCPUs returns the CPUs that the kubelet has assigned to the guest of a Pod exclusively.
	ExclusiveCPUs func(ctx context.Context, pod string) (cpuset.CPUSet, error)
	// Log is the log.
	Log logr.Logger
}

// Broker does what its verbs want.
type Broker struct {
	Options
	// quick are requests that do not depend on a Pod's storage, volumes those with a large response, and hotplug those
	// that change a Pod's hotplugged volumes.
	quick, volumes, storage, hotplug *server.Limiter
	// rules is held while device rules are read and changed, which is short.
	rules sync.Mutex
	// opened are the block devices that the broker has open, or nil for one that it is opening.
	opened map[devicerule.Device]*os.File
	// removed receives when the kubelet has removed an attachment Pod's link to its device.
	removed chan struct{}
	// open opens a block device.
	open func(path string) (*os.File, error)
}

// New returns a Broker.
func New(o Options) *Broker {
	return &Broker{
		Options: o,
		opened:  map[devicerule.Device]*os.File{}, removed: make(chan struct{}, 1),
		open:    func(path string) (*os.File, error) { return os.OpenFile(filepath.Clean(path), unix.O_NONBLOCK, 0) },
		volumes: server.NewLimiter(2, 256, "too many volumes are being read: retry").InAll(largeInAll),
		quick:   server.NewLimiter(8, 256, "too many requests about this Pod are in flight: retry"),
		// The kernel does not interrupt accesses to storage, and each blocks a thread: with a claim on a server that is
		// gone, each reconciliation would block another one.
		storage: server.NewLimiter(4, 0, "the storage of the launcher Pod does not respond"),
		hotplug: server.NewLimiter(1, 128, "volumes of the launcher Pod are being changed: retry"),
	}
}

// Verbs returns its verbs.
func (b *Broker) Verbs() server.Verbs {
	return server.Verbs{
		brokerapi.OpenSocket:   server.With(b.openSocket),
		brokerapi.WatchGuest:   server.With(b.watchGuest),
		brokerapi.ReadVolume:   server.With(b.readVolume),
		brokerapi.OpenFile:     server.With(b.openFile),
		brokerapi.SyncState:    server.With(b.syncState),
		brokerapi.GiveHostDir:  server.With(b.giveHostDir),
		brokerapi.OwnDevices:   server.With(b.ownDevices),
		brokerapi.Inspect:      server.With(b.inspect),
		brokerapi.CPUs:         server.With(b.cpus),
		brokerapi.SetRealtime:  server.With(b.setRealtime),
		brokerapi.AttachVolume: server.With(b.attachVolume),
		brokerapi.DetachVolume: server.With(b.detachVolume),
	}
}

// ofLibvirtd returns a task that needs the directory in /proc of the Pod's libvirtd.
func (b *Broker) ofLibvirtd(
	limit *server.Limiter, pod string, do func(ctx context.Context, libvirtd *os.File) (server.Output, error),
) server.Task {
	return server.OfLibvirtd(b.Pods, limit, pod, do)
}

// inRoot returns a task that needs the root directory of the Pod's libvirtd.
func (b *Broker) inRoot(
	limit *server.Limiter, pod string, do func(root *podprocess.Root) (server.Output, error),
) server.Task {
	return b.ofLibvirtd(limit, pod, func(_ context.Context, libvirtd *os.File) (server.Output, error) {
		root, err := podprocess.OpenRoot(libvirtd)
		if err != nil {
			return server.Output{}, fmt.Errorf("open the root directory of launcher Pod %s: %w", pod, err)
		}
		defer func() { _ = root.Close() }()
		return do(root)
	})
}

// maxStateEntries is the limit for the entries of a claim. There are about ten files and directories.
const maxStateEntries = 256

// syncState writes the Pod's persistent state to the disk.
func (b *Broker) syncState(pod string, _ server.None) (server.Task, error) {
	return b.inRoot(b.storage, pod,
		func(root *podprocess.Root) (server.Output, error) { return server.Output{}, syncState(root) }), nil
}

// syncState returns when all files of the claim are on its disk, each directory after what is in it. It opens nothing
// but the claim, whatever links the Pod has created.
func syncState(root *podprocess.Root) error {
	names := []string{"."}
	for i := 0; i < len(names); i++ {
		err := ofState(root, names[i], func(file *os.File) error {
			entries, err := podprocess.Names(file, maxStateEntries+2-len(names))
			for _, entry := range entries {
				names = append(names, path.Join(names[i], entry))
			}
			if errors.Is(err, unix.ENOTDIR) {
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
		if len(names) > maxStateEntries+1 {
			return fmt.Errorf("the persistent state has more than %d files and directories: delete those that are not of the guest", maxStateEntries)
		}
	}
	for _, name := range slices.Backward(names) {
		if err := ofState(root, name, (*os.File).Sync); err != nil && !errors.Is(err, unix.EINVAL) {
			// Some file systems do not support fsync on directories, because they write entries synchronously.
			return err
		}
	}
	return nil
}

// ofState calls a function with a file or a directory of the claim. It does nothing with one that is not to be written:
// swtpm replaces its files, and the launcher may have created others than files and directories.
func ofState(root *podprocess.Root, name string, do func(*os.File) error) error {
	file, err := root.OpenWithin(layout.StateDir, name, unix.S_IFDIR, unix.S_IFREG)
	if name != "." && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, podprocess.ErrKind) ||
		errors.Is(err, unix.ELOOP)) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return do(file)
}

// inspect describes a file of the Pod.
func (b *Broker) inspect(pod string, a brokerapi.InspectArguments) (server.Task, error) {
	if !path.IsAbs(a.Path) || len(a.Path) >= unix.PathMax || strings.ContainsRune(a.Path, 0) {
		return server.Task{}, brokerapi.Invalid("%.256q is no path", a.Path)
	}
	return b.inRoot(b.storage, pod, func(root *podprocess.Root) (server.Output, error) {
		f, err := root.Open(a.Path, unix.O_PATH)
		if err != nil {
			return server.Output{}, err
		}
		defer func() { _ = f.Close() }()
		result, err := describe(f, a)
		return server.Output{Result: result}, err
	}), nil
}

// describe describes a file without opening it, unless it is a regular one and DirectIO is requested: opening a device
// can have side effects.
func describe(f *os.File, a brokerapi.InspectArguments) (brokerapi.InspectResult, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return brokerapi.InspectResult{}, err
	}
	result := brokerapi.InspectResult{Mode: stat.Mode}
	if kind := stat.Mode & unix.S_IFMT; kind == unix.S_IFBLK {
		result.Major, result.Minor = unix.Major(stat.Rdev), unix.Minor(stat.Rdev)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err == nil && fs.Bsize > 0 {
		result.BlockSize = uint(fs.Bsize)
	}
	if a.DirectIO && stat.Mode&unix.S_IFMT == unix.S_IFREG && podprocess.ExpectNoKernelFile(f) == nil {
		fd, err := unix.Open(podprocess.Reopen(f), unix.O_RDONLY|unix.O_DIRECT|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		result.DirectIO = err == nil && unix.Close(fd) == nil
	}
	if a.SELinux {
		var err error
		if result.SELinuxContext, err = selinuxContext(f, "/proc/filesystems"); err != nil {
			return result, err
		}
	}
	return result, nil
}

// maxSELinuxContext is the longest SELinux context in bytes. That of a Pod has less than 100.
const maxSELinuxContext = 255

// selinuxContext returns the SELinux context of a file. fileSystems is the kernel's list of the types of file systems:
// that of SELinux is among them only if SELinux is enabled. Without a policy, files have no context.
func selinuxContext(f *os.File, fileSystems string) (string, error) {
	types, err := os.ReadFile(fileSystems) //nolint:gosec // a file of the kernel
	if err != nil {
		return "", err
	}
	context := make([]byte, maxSELinuxContext)
	n, err := unix.Getxattr(podprocess.Reopen(f), "security.selinux", context)
	if !bytes.Contains(types, []byte("\tselinuxfs\n")) || errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return brokerapi.NoSELinux, nil
	}
	if err != nil {
		return "", fmt.Errorf("read the SELinux context: %w", err)
	}
	return strings.TrimRight(string(context[:n]), "\x00"), nil
}

// watchGuest returns a descriptor of the Pod's QEMU.
func (b *Broker) watchGuest(pod string, _ server.None) (server.Task, error) {
	return b.ofLibvirtd(b.quick, pod, func(_ context.Context, libvirtd *os.File) (server.Output, error) {
		qemu, err := podprocess.WatchGuest(libvirtd)
		return server.Output{File: qemu}, err
	}), nil
}
