// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// local is the loopback CID. It needs the module vsock_loopback. Source: linux/vm_sockets.h.
const local = 1

// listen starts an echo server for one connection and returns its port.
func listen(t *testing.T) uint32 {
	t.Helper()
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skipf("this kernel has no VSOCK: %v", err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: unix.VMADDR_PORT_ANY}); err != nil {
		t.Skipf("this kernel has no VSOCK: %v", err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		client, _, err := unix.Accept(fd)
		if err != nil {
			return
		}
		file := os.NewFile(uintptr(client), "client")
		_, _ = io.Copy(file, file)
		_ = file.Close()
	}()
	return at.(*unix.SockaddrVM).Port
}

func TestDial(t *testing.T) {
	port := listen(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := dialVSOCK(ctx, local, port)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ETIMEDOUT) {
		// Without the module, the packets go to another transport or are dropped.
		t.Skip("the module vsock_loopback is not loaded")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		t.Errorf("%q (%v)", got, err)
	}
	// Close interrupts a read.
	go func() { _ = conn.Close() }()
	if _, err := conn.Read(got); err == nil {
		t.Error("read from a closed connection")
	}
}

func TestDialUnknownGuest(t *testing.T) {
	listen(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if conn, err := dialVSOCK(ctx, firstGuest+12345, 1); err == nil {
		_ = conn.Close()
		t.Error("connected to a guest that does not exist")
	}
}
