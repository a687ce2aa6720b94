// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package nbd

import (
	"bytes"
	"errors"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const mebibyte = 1 << 20

// tool runs one of QEMU's programs.
func tool(t *testing.T, name string, arguments ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arguments, " "), err, out)
	}
}

// serve serves an image of 8 MiB plus a sector with qemu-nbd, and returns the socket. It has data at 1 MiB, and what
// has changed since its bitmap at 3 MiB.
func serve(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"qemu-nbd", "qemu-img", "qemu-io"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip("there is no " + name)
		}
	}
	image, socket := filepath.Join(t.TempDir(), "image.qcow2"), filepath.Join(t.TempDir(), "nbd")
	tool(t, "qemu-img", "create", "-q", "-f", "qcow2", image, "8389120")
	tool(t, "qemu-io", "-c", "write -P 0x11 1M 1M", image)
	tool(t, "qemu-img", "bitmap", "--add", image, "since")
	tool(t, "qemu-io", "-c", "write -P 0x22 3M 64k", "-c", "write -z 5M 64k", image)
	tool(t, "qemu-img", "bitmap", "--disable", image, "since")
	server := exec.CommandContext(t.Context(), "qemu-nbd", "--read-only", "--persistent", "--shared=4", "--format=qcow2",
		"--bitmap=since", "--export-name=root", "--socket="+socket, image)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	return socket
}

func dial(t *testing.T, socket string) net.Conn {
	t.Helper()
	for range 100 {
		if conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", socket); err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("qemu-nbd does not serve")
	return nil
}

// at returns the flags of the byte at an offset.
func at(extents []Extent, offset uint64) uint32 {
	for _, e := range extents {
		if offset < e.Length {
			return e.Flags
		}
		offset -= e.Length
	}
	return 1 << 31
}

func TestQEMU(t *testing.T) {
	socket := serve(t)
	bitmap := BitmapContext("since")
	c, err := Open(dial(t, socket),
		Options{Export: "root", Contexts: []string{AllocationContext, bitmap}, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if c.Size() != 8*mebibyte+512 || c.MaxRead() != maxRead {
		t.Errorf("the size is %d and a request reads %d", c.Size(), c.MaxRead())
	}
	for offset, want := range map[uint64]byte{0: 0, mebibyte: 0x11, 3 * mebibyte: 0x22, 5 * mebibyte: 0} {
		buffer := make([]byte, 64<<10)
		if err := c.Read(buffer, offset); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(buffer, bytes.Repeat([]byte{want}, len(buffer))) {
			t.Errorf("at %d, the bytes are not %#x", offset, want)
		}
	}
	mixed := make([]byte, mebibyte)
	if err := c.Read(mixed, mebibyte/2); err != nil || mixed[0] != 0 || mixed[mebibyte-1] != 0x11 {
		t.Errorf("a read over a hole: %v", err)
	}
	status, err := c.Status(0, c.Size())
	if err != nil {
		t.Fatal(err)
	}
	for offset, want := range map[uint64][2]uint32{
		0: {Hole | Zero, 0}, mebibyte: {0, 0}, 3 * mebibyte: {0, Dirty}, 5 * mebibyte: {Zero, Dirty},
		8 * mebibyte: {Hole | Zero, 0},
	} {
		allocation, changed := at(status[AllocationContext], offset), at(status[bitmap], offset)
		if allocation&Zero != want[0]&Zero || changed != want[1] {
			t.Errorf("at %d, the flags are %#x and %#x, not %#x", offset, allocation, changed, want)
		}
	}
	if err := c.Read(make([]byte, 512), c.Size()); err == nil {
		t.Error("bytes behind the end can be read")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestQEMUHasNoOtherExport(t *testing.T) {
	socket := serve(t)
	for name, o := range map[string]Options{
		"export":  {Export: "other"},
		"context": {Export: "root", Contexts: []string{BitmapContext("other")}},
	} {
		if _, err := Open(dial(t, socket), o); !errors.Is(err, ErrNoExport) {
			t.Errorf("another %s: %v", name, err)
		}
	}
}
