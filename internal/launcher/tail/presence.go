// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package tail

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// presenceSuffix is appended to the name of the pipe for the name of virt-launcher's socket.
const presenceSuffix = ".launcher"

// Presence is a socket on which virt-launcher listens but never accepts. A connection to it is closed when virt-launcher exits,
// for whatever reason, and even if other processes have the pipe open.
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

// listen renames the socket to its final name once it listens. So if a socket of that name does not listen, its process has exited.
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

// launcherExit returns a channel that is closed when the process that has announced itself has ended, or nil if there was none.
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
