// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// usbPort is the port of the tests.
const usbPort = 3

func (n *node) usbSocket() string {
	return filepath.Join(n.sockets, launcherpod.USBSocketName(usbPort))
}

func (n *node) openUSB() (net.Conn, error) {
	return (&Conn{options: n.options, pod: hypervisor.PodRef{UID: podUID}}).OpenUSB(context.Background(), usbPort)
}

func TestOpenUSB(t *testing.T) {
	n := newNode(t)
	listen(t, n.usbSocket(), func(c net.Conn) { _, _ = io.WriteString(c, "hello") })
	conn, err := n.openUSB()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("hello"))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		t.Errorf("heard %q (%v)", got, err)
	}
}

func TestUSBPortWithoutListener(t *testing.T) {
	n := newNode(t)
	if _, err := n.openUSB(); !errors.Is(err, hypervisor.ErrNotRunning) {
		t.Errorf("without a socket: got %v, want ErrNotRunning", err)
	}
	// A QEMU that has ended leaves its socket.
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(listener.Close(), os.Rename(listener.Addr().String(), n.usbSocket())); err != nil {
		t.Fatal(err)
	}
	if _, err := n.openUSB(); !errors.Is(err, hypervisor.ErrNotRunning) {
		t.Errorf("without a listener: got %v, want ErrNotRunning", err)
	}
}

func TestUSBPortOfAnotherProcess(t *testing.T) {
	t.Run("by a symlink", func(t *testing.T) {
		n := newNode(t)
		elsewhere := filepath.Join(t.TempDir(), "socket")
		reached := make(chan struct{}, 1)
		listen(t, elsewhere, func(net.Conn) { reached <- struct{}{} })
		if err := os.Symlink(elsewhere, n.usbSocket()); err != nil {
			t.Fatal(err)
		}
		_, err := n.openUSB()
		expectUnreachable(t, err, "is no socket")
		select {
		case <-reached:
			t.Error("the agent connected through a symlink")
		default:
		}
	})
	t.Run("by its process", func(t *testing.T) {
		n := newNodeWith(t, nil)
		listen(t, n.usbSocket(), func(net.Conn) {})
		_, err := n.openUSB()
		expectUnreachable(t, err, "is served by user")
	})
}
