// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package podprocess gives access to a launcher Pod's processes and to their files. It needs the node's process
// namespace.
package podprocess

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxFile is the limit for what is read from a file of /proc or of a cgroup, in bytes.
const MaxFile = 1 << 20

// QEMU is QEMU's process name, which the kernel truncates to 15 bytes.
const QEMU = "qemu-system-x86"

// OpenIn opens a file in a process's directory of /proc.
func OpenIn(process *os.File, name string) (*os.File, error) {
	return OpenAt(process, name, unix.O_RDONLY, 0)
}

// Names returns the first names in a directory.
func Names(dir *os.File, most int) ([]string, error) {
	names, err := dir.Readdirnames(most)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// Read returns what a file in a process's directory of /proc contains, up to a limit.
func Read(process *os.File, name string) (string, error) {
	f, err := OpenIn(process, name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, MaxFile))
	return string(text), err
}

// Comm returns the kernel's name of a process, or of one of its threads, given its path; empty if it has ended. Any
// process can change its own name.
func Comm(process *os.File, thread string) string {
	name, err := Read(process, thread+"/comm")
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(name, "\n")
}

// EachQEMU calls visit for each process with QEMU's name in the process namespace of a launcher Pod, which is its
// libvirtd's. The pid may have been reused by then; the directory is always that of the process.
func EachQEMU(libvirtd *os.File, visit func(process *os.File, pid int)) error {
	own, err := sharesNamespace(libvirtd, "pid", "/proc/self")
	if err == nil && own {
		err = errors.New("the launcher Pod has no process namespace of its own")
	}
	if err != nil {
		return err
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, process := range processes {
		pid, err := strconv.Atoi(process.Name())
		if err != nil {
			continue
		}
		dir, err := os.Open("/proc/" + process.Name())
		if err != nil {
			continue // It has exited.
		}
		if same, err := sharesNamespace(libvirtd, "pid", Reopen(dir)); err == nil && same && Comm(dir, ".") == QEMU {
			visit(dir, pid)
		}
		_ = dir.Close()
	}
	return nil
}

// sharesNamespace reports whether a process has the same namespace of a kind as another one, given the path of its
// directory in /proc.
func sharesNamespace(process *os.File, kind, other string) (bool, error) {
	a, errA := os.Stat(Reopen(process) + "/ns/" + kind)
	b, errB := os.Stat(other + "/ns/" + kind)
	if err := errors.Join(errA, errB); err != nil {
		return false, fmt.Errorf("find the namespaces of the launcher Pod: %w", err)
	}
	return os.SameFile(a, b), nil
}

// OnDisposableThread calls a function on a thread that exits afterwards, so that no other goroutine runs in a namespace
// that the function enters.
func OnDisposableThread(do func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread with the goroutine
		if unix.Gettid() != unix.Getpid() {
			result <- do()
			return
		}
		// The first thread of a process cannot exit. It would stay in the namespace, and /proc/self is about the first
		// thread. While this goroutine keeps it locked, another thread is used.
		defer runtime.UnlockOSThread()
		result <- OnDisposableThread(do)
	}()
	return <-result
}

// errOwnUserNamespace means that a Pod has root privileges over its mounts.
var errOwnUserNamespace = errors.New("the launcher Pod has a user namespace of its own")

// InMounts calls a function in the mount namespace of a process, given its directory in /proc. The function has no path
// of the node, and must use no path from the root directory, which is the process's. A Pod that could change its mounts
// as it likes is refused.
func InMounts(process *os.File, inside func() error) error {
	return OnDisposableThread(func() error {
		users, err := sharesNamespace(process, "user", "/proc/self")
		if err == nil && !users {
			err = errOwnUserNamespace
		}
		if err != nil {
			return err
		}
		mounts, err := OpenIn(process, "ns/mnt")
		if err != nil {
			return err
		}
		defer func() { _ = mounts.Close() }()
		// A thread that shares its root directory with others cannot enter.
		if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(mounts.Fd()), unix.CLONE_NEWNS)); err != nil {
			return fmt.Errorf("enter the mounts of the launcher Pod: %w", err)
		}
		return inside()
	})
}

// Root is the root directory of a Pod's process.
type Root struct{ dir *os.File }

// OpenRoot opens the root directory of a process, given its directory in /proc.
func OpenRoot(process *os.File) (*Root, error) {
	dir, err := OpenAt(process, "root", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &Root{dir: dir}, nil
}

// Open opens a path in the Pod. Symlinks are resolved in the Pod, and opening a pipe does not block. It does block on
// storage that hangs.
func (r *Root) Open(name string, flags int) (*os.File, error) {
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NONBLOCK
	}
	return OpenAt(r.dir, name, flags, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
}

// Close closes the directory.
func (r *Root) Close() error { return r.dir.Close() }

// Beneath are the restrictions that keep a path below the directory that it starts in, without symlinks, so that no
// entry that a Pod creates can redirect the broker.
const Beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// OpenAt opens a path below a directory, with flags of open and restrictions of openat2 (RESOLVE_). Only the owner may
// use a file that it creates.
func OpenAt(dir *os.File, name string, flags int, resolve uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: resolve}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	fd, err := unix.Openat2(int(dir.Fd()), name, &how)
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Reopen returns a path to the inode of an open descriptor, even if it was renamed. It fits into the 108 bytes of a
// socket's address.
func Reopen(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// errNoSingleQEMU means that a launcher Pod has no process with QEMU's name, or several.
var errNoSingleQEMU = errors.New("none or several processes of the launcher Pod are QEMU's")

// WatchGuest returns a pidfd of a launcher Pod's QEMU, which it finds by its name: it becomes readable when all threads
// of the process have exited, its memory is freed and its files are closed. The Pod's processes can fake the name, but
// this affects their own guest only, as their libvirtd could. The descriptor gives its owner no power over the process
// that the owner does not have anyway.
func WatchGuest(libvirtd *os.File) (*os.File, error) {
	var found []*os.File
	var failed error
	err := EachQEMU(libvirtd, func(process *os.File, pid int) {
		if len(found) < 2 { // The Pod may have thousands of processes with that name, and each takes a descriptor.
			w, err := watchProcess(process, pid)
			found, failed = append(found, w), errors.Join(failed, err)
		}
	})
	if err = errors.Join(err, failed); err == nil && len(found) == 1 {
		return found[0], nil
	}
	for _, w := range found {
		_ = w.Close() // which does nothing with nil
	}
	return nil, cmp.Or(err, errNoSingleQEMU)
}

func watchProcess(process *os.File, pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("watch a process: %w", err)
	}
	w := os.NewFile(uintptr(fd), "pidfd")
	// The directory always refers to the original process. As long as it has files, the pid has not been reused.
	if Comm(process, ".") != QEMU {
		_ = w.Close()
		return nil, fmt.Errorf("watch a process: %w", fs.ErrNotExist)
	}
	return w, nil
}

// Cgroup is a cgroup of a process in one hierarchy.
type Cgroup struct {
	// V2 means that the hierarchy is that of version 2, which has no list of Controllers.
	V2          bool
	Controllers []string
	// Elements are those of the cgroup's path.
	Elements []string
}

// Cgroups returns the cgroups of a process, given its directory in /proc.
func Cgroups(process *os.File) ([]Cgroup, error) {
	text, err := Read(process, "cgroup")
	return parseCgroups(text), err
}

func parseCgroups(text string) (cgroups []Cgroup) {
	for line := range strings.Lines(text) {
		// <hierarchy>:<controllers>:<path>
		if parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3); len(parts) == 3 {
			cgroups = append(cgroups,
				Cgroup{parts[0] == "0", strings.Split(parts[1], ","), strings.Split(strings.Trim(parts[2], "/"), "/")})
		}
	}
	return cgroups
}

// MountKernelFS mounts a file system of the kernel with flags, nowhere: it is gone when the descriptor is closed. Those
// of a container are mounted read-only, and not complete.
func MountKernelFS(kind string, flags ...string) (*os.File, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open file system %s: %w", kind, err)
	}
	defer func() { _ = unix.Close(fs) }()
	for _, flag := range flags {
		if err := unix.FsconfigSetFlag(fs, flag); err != nil {
			return nil, fmt.Errorf("mount %s with %s: %w", kind, flag, err)
		}
	}
	mount := -1
	if err = unix.FsconfigCreate(fs); err == nil {
		mount, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC,
			unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", kind, err)
	}
	return os.NewFile(uintptr(mount), kind), nil
}
