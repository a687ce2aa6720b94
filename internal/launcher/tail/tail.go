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

// Patience is how long Run waits for a virt-launcher to open the pipe. One that cannot be started never does, and the Pod,
// which ends when its last container has ended, would keep its share of the node.
const Patience = 5 * time.Minute

// Make makes the pipe unless it is there: virt-launcher and Run do not know which of them comes first.
func Make(path string) error {
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	return nil
}

// Run copies what is written to the pipe until every writer has closed it, and then returns nil. A request to stop counts only
// while nobody has opened the pipe: the kubelet stops all containers of a Pod at once, and the guest's last words come after
// that. Errors of out are ignored; the log of a container comes back when its runtime has started again.
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
	select {
	case r := <-opened:
		if r.err != nil {
			return r.err
		}
		defer func() { _ = r.file.Close() }()
		return drain(r.file, out)
	case <-stop:
	case <-patience:
	}
	return rest(path, out)
}

// rest copies what there is after all: virt-launcher may have opened the pipe at the same moment. If it has not, that is nothing.
func rest(path string, out io.Writer) error {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) //nolint:gosec // the Pod's own path
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return drain(file, out)
}

type result struct {
	file *os.File
	err  error
}

func drain(from io.Reader, out io.Writer) error {
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
	}
}
