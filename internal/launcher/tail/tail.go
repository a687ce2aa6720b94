// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package tail is the program of the container guest-console-log: it copies the guest's console from the pipe that
// virt-launcher writes to into the container's log, and ends with virt-launcher. One runs beside every guest, so it imports
// as little as possible: each megabyte counts once per VM.
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

// Patience is how long Run waits for a virt-launcher. One that cannot be started never comes, and the Pod, which ends when its last
// container has ended, would keep its share of the node.
const Patience = 5 * time.Minute

// Make makes the pipe unless it is there: virt-launcher and Run do not know which of them comes first.
func Make(path string) error {
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	return nil
}

// Run copies what is written to the pipe until every writer has closed it or virt-launcher has ended, and then returns nil: other
// containers of the Pod may have the pipe open, too. A request to stop counts only while there is no virt-launcher: the kubelet stops all
// containers of a Pod at once, and the guest's last words come after that. Errors of out are ignored; the log of a container comes back
// when its runtime has started again.
func Run(path string, out io.Writer, stop <-chan os.Signal, patience <-chan time.Time) error {
	if err := Make(path); err != nil {
		return err
	}
	opened := make(chan result, 1)
	go func() {
		// Opening a pipe for reading waits for somebody to open it for writing.
		file, err := os.OpenFile(path, os.O_RDONLY, 0) //nolint:gosec // the Pod's own path
		opened <- result{file, err}
	}()
	var pipe result
	enough := false
	select {
	case pipe = <-opened:
	case <-launcher(path): // the container was started again too late: nobody opens the pipe any more
		enough = true
	case <-stop:
		enough = true
	case <-patience:
		enough = true
	}
	if enough {
		// virt-launcher may have opened the pipe at the same moment. If it has not, there is nothing in it.
		pipe.file, pipe.err = os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) //nolint:gosec // the Pod's own path
	}
	if pipe.err != nil {
		return pipe.err
	}
	defer func() { _ = pipe.file.Close() }()
	return follow(path, pipe.file, out, stop, patience, enough)
}

type result struct {
	file *os.File
	err  error
}

// follow copies until the end. enough says that a virt-launcher that has not come is not waited for.
func follow(path string, pipe *os.File, out io.Writer, stop <-chan os.Signal, patience <-chan time.Time, enough bool) error {
	read := make(chan struct{}, 1)
	drained := make(chan error, 1)
	go func() { drained <- drain(pipe, out, read) }()
	var ended <-chan struct{}
	for {
		if ended == nil {
			// It announces itself before it opens the pipe, so whatever it writes comes after that.
			ended = launcher(path)
		}
		if ended != nil {
			stop, patience = nil, nil
		} else if enough {
			return finish(pipe, out, drained)
		}
		select {
		case err := <-drained:
			return err
		case <-ended:
			return finish(pipe, out, drained)
		case <-read:
		case <-stop:
			enough = true
		case <-patience:
			enough = true
		}
	}
}

// drain copies until every writer has closed the pipe, and says after each part that it was read.
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
		default: // the part before that is not heeded yet
		}
	}
}

// finish interrupts drain and copies what the pipe has, but no more than fits into it: somebody else may write without end.
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
		// It never waits: what is not there now does not come from virt-launcher.
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
