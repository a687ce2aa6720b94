// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package tail is the program of the container guest-console-log: it copies the guest's console from the pipe that
// virt-launcher writes to the container's log, and exits with virt-launcher. It imports as few packages as possible,
// because one runs for every VM and each megabyte counts.
package tail

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcherpod/imagesize"
)

// bufferSize is how much is copied at once. A Linux pipe buffers four times as much.
const bufferSize = 16 << 10

// StartTimeout is how long Run waits for virt-launcher. If its container cannot be started, the Pod would otherwise
// never finish, and use resources of the node.
const StartTimeout = 5 * time.Minute

// Make creates the pipe unless it exists: virt-launcher and Run start in any order.
func Make(path string) error {
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	return nil
}

// Run copies from the pipe until every writer has closed it or virt-launcher has exited, and then returns nil: other
// containers of the Pod may have the pipe open, too. stop and timeout only have an effect while there is no
// virt-launcher: the kubelet stops all containers of a Pod at once, and the guest still prints while it shuts down.
// Errors of out are ignored: a container's log is available again when its runtime has restarted.
func Run(path string, out io.Writer, stop <-chan os.Signal, timeout <-chan time.Time) error {
	if err := Make(path); err != nil {
		return err
	}
	opened := make(chan result, 1)
	go func() {
		// Opening a pipe for reading blocks until it is opened for writing.
		file, err := os.OpenFile(path, os.O_RDONLY, 0) //nolint:gosec // the Pod's own path
		opened <- result{file, err}
	}()
	var pipe result
	stopping := false
	select {
	case pipe = <-opened:
	case <-launcherExit(path): // This container was restarted too late: the pipe is not opened any more.
		stopping = true
	case <-stop:
		stopping = true
	case <-timeout:
		stopping = true
	}
	if stopping {
		// virt-launcher may have opened the pipe at the same time. If it has not, the pipe is empty.
		pipe.file, pipe.err = os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) //nolint:gosec // the Pod's own path
	}
	if pipe.err != nil {
		return pipe.err
	}
	defer func() { _ = pipe.file.Close() }()
	return follow(path, pipe.file, out, stop, timeout, stopping)
}

type result struct {
	file *os.File
	err  error
}

// follow copies until virt-launcher has exited, or all writers have. If stopping is set, it does not wait for
// virt-launcher to start.
func follow(
	path string, pipe *os.File, out io.Writer, stop <-chan os.Signal, timeout <-chan time.Time, stopping bool,
) error {
	read := make(chan struct{}, 1)
	drained := make(chan error, 1)
	go func() { drained <- drain(pipe, out, read) }()
	var ended <-chan struct{}
	for {
		if ended == nil {
			// virt-launcher announces itself before it opens the pipe.
			ended = launcherExit(path)
		}
		if ended != nil {
			stop, timeout = nil, nil
		} else if stopping {
			return finish(pipe, out, drained)
		}
		select {
		case err := <-drained:
			return err
		case <-ended:
			return finish(pipe, out, drained)
		case <-read:
		case <-stop:
			stopping = true
		case <-timeout:
			stopping = true
		}
	}
}

// drain copies until every writer has closed the pipe, and sends to read after each chunk.
func drain(from io.Reader, out io.Writer, read chan<- struct{}) error {
	buffer := make([]byte, bufferSize)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			_, _ = out.Write(buffer[:n])
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		select {
		case read <- struct{}{}:
		default: // The notification for an earlier chunk is still pending.
		}
	}
}

// finish interrupts drain and copies the content of the pipe, at most its capacity: another process may write
// endlessly.
func finish(pipe *os.File, out io.Writer, drained <-chan error) error {
	if err := pipe.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return err
	}
	if err := <-drained; !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if err := pipe.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	raw, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	left, buffer := 0, make([]byte, bufferSize)
	if err := raw.Control(func(fd uintptr) { left, err = unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0) }); err != nil {
		return err
	}
	for err == nil && left > 0 {
		n := 0
		// It does not wait: data that is written later is not virt-launcher's.
		if failed := raw.Read(func(fd uintptr) bool { n, err = unix.Read(int(fd), buffer); return true }); failed != nil {
			return failed
		}
		if n <= 0 {
			break
		}
		_, _ = out.Write(buffer[:n])
		left -= n
	}
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	return err
}

// imageMode is the mode of new disk images: QEMU's user reads and writes them, and a group that the file system may
// have.
const imageMode = 0o660

// CreateImage creates a sparse disk image if there is none. The arguments are its path, the size of the disk, the bytes
// to keep free on the file system, and by how many percent the image may be smaller. An empty file is an image whose
// creation was interrupted.
func CreateImage(path string, arguments []string) error {
	if len(arguments) != 3 {
		return fmt.Errorf("create %s: want SIZE RESERVE PERCENT, got %q", path, arguments)
	}
	numbers := [3]uint64{}
	for i, argument := range arguments {
		n, err := strconv.ParseUint(argument, 10, 63)
		if err != nil {
			return fmt.Errorf("create %s: %w", path, err)
		}
		numbers[i] = n
	}
	// Never what a link leads to, and without waiting for the other end of a pipe.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, imageMode)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var file unix.Stat_t
	if err := unix.Fstat(fd, &file); err != nil {
		return fmt.Errorf("fstat %s: %w", path, err)
	}
	if file.Mode&unix.S_IFMT != unix.S_IFREG || file.Size > 0 {
		return nil
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(fd, &system); err != nil {
		return fmt.Errorf("fstatfs %s: %w", path, err)
	}
	size, err := imagesize.Of(numbers[0], system.Bavail*uint64(system.Bsize), numbers[1], int(min(numbers[2], 100)))
	if err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return fmt.Errorf("truncate %s to %d bytes: %w", path, size, err)
	}
	return nil
}

// presenceSuffix is appended to the name of the pipe for the name of virt-launcher's socket.
const presenceSuffix = ".launcher"

// Presence is a socket on which virt-launcher listens but never accepts. A connection to it is closed when
// virt-launcher exits, for whatever reason, and even if other processes have the pipe open.
type Presence struct{ fd int }

// Announce announces this process as the writer of the pipe. Call it before opening the pipe.
func Announce(path string) (*Presence, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("create a socket: %w", err)
	}
	p := &Presence{fd}
	if err := p.listen(path + presenceSuffix); err != nil {
		p.Close()
		return nil, fmt.Errorf("listen at %s: %w", path+presenceSuffix, err)
	}
	return p, nil
}

// listen renames the socket to its final name once it listens. So if a socket of that name does not listen, its process
// has exited.
func (p *Presence) listen(name string) error {
	unfinished := name + ".new"
	if err := os.Remove(unfinished); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := unix.Bind(p.fd, &unix.SockaddrUnix{Name: unfinished}); err != nil {
		return err
	}
	if err := unix.Listen(p.fd, unix.SOMAXCONN); err != nil {
		return err
	}
	return os.Rename(unfinished, name)
}

// Close closes the socket, as the exit of the process does.
func (p *Presence) Close() { _ = unix.Close(p.fd) }

// launcherExit returns a channel that is closed when the process that has announced itself has ended, or nil if there
// was none.
func launcherExit(path string) <-chan struct{} {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	ended := make(chan struct{})
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path + presenceSuffix})
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		_ = unix.Close(fd)
		if errors.Is(err, unix.ECONNREFUSED) {
			close(ended)
			return ended
		}
		return nil
	}
	go func() {
		defer close(ended)
		defer func() { _ = unix.Close(fd) }()
		for err := error(unix.EINTR); errors.Is(err, unix.EINTR); {
			_, err = unix.Read(fd, make([]byte, 1))
		}
	}()
	return ended
}
