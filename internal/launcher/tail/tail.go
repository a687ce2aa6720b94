// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package tail is the program of the container guest-console-log: it copies the guest's console from the pipe that virt-launcher
// writes to the container's log, and exits with virt-launcher. It imports as few packages as possible, because one runs for every
// VM and each megabyte counts.
package tail

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// bufferSize is how much is copied at once. A Linux pipe holds four times as much.
const bufferSize = 16 << 10

// StartTimeout is how long Run waits for virt-launcher. If its container cannot be started, the Pod would otherwise never finish,
// and use resources of the node.
const StartTimeout = 5 * time.Minute

// Make creates the pipe unless it exists: virt-launcher and Run start in any order.
func Make(path string) error {
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	return nil
}

// Run copies from the pipe until every writer has closed it or virt-launcher has exited, and then returns nil: other containers
// of the Pod may have the pipe open, too. stop and timeout only have an effect while there is no virt-launcher: the kubelet stops
// all containers of a Pod at once, and the guest still prints while it shuts down. Errors of out are ignored: a container's log
// is available again when its runtime has restarted.
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

// follow copies until virt-launcher has exited, or all writers have. If stopping is set, it does not wait for virt-launcher to
// start.
func follow(path string, pipe *os.File, out io.Writer, stop <-chan os.Signal, timeout <-chan time.Time, stopping bool) error {
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

// finish interrupts drain and copies the content of the pipe, at most its capacity: another process may write endlessly.
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
