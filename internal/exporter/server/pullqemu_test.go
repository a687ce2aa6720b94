// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/exporter/content"
)

// TestPullFromQEMU reads an image of 4 MiB, of which 64 KiB at 1 MiB and 2 MiB have changed since its bitmap, from
// qemu-nbd.
func TestPullFromQEMU(t *testing.T) {
	image, socket := filepath.Join(t.TempDir(), "image.qcow2"), filepath.Join(t.TempDir(), "nbd")
	for _, command := range [][]string{
		{"qemu-img", "create", "-q", "-f", "qcow2", image, "4M"},
		{"qemu-io", "-c", "write -P 0x11 0 64k", image},
		{"qemu-img", "bitmap", "--add", image, "changes"},
		{"qemu-io", "-c", "write -P 0x22 1M 64k", "-c", "write -P 0x33 2M 64k", image},
		{"qemu-img", "bitmap", "--disable", image, "changes"},
		{"qemu-nbd", "--version"},
	} {
		if _, err := exec.LookPath(command[0]); err != nil {
			t.Skip("there is no " + command[0])
		}
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	qemu := exec.CommandContext(t.Context(), "qemu-nbd", "--read-only", "--persistent", "--shared=8", "--format=qcow2",
		"--bitmap=changes", "--export-name=root", "--socket="+socket, image)
	must(t, qemu.Start())
	t.Cleanup(func() {
		_ = qemu.Process.Kill()
		_ = qemu.Wait()
	})
	for _, err := os.Stat(socket); err != nil; _, err = os.Stat(socket) {
		time.Sleep(5 * time.Millisecond)
	}
	w := servePull(t, changes)
	for range 3 {
		w.forward(socket)
	}
	for w.request(content.ReadinessPath).code != http.StatusOK {
		time.Sleep(5 * time.Millisecond)
	}
	want := "0+128 0 clean; 128+1920 2 zero; 2048+128 1 dirty; 2176+1920 2 zero; 4096+128 1 dirty; 4224+3968 2 zero"
	if got := summary(w.page("")); got != want {
		t.Errorf("the blocks are %s", got)
	}
	for offset, value := range map[string]byte{"1048576": 0x22, "2097152": 0x33} {
		got := w.request(content.DataPath("root") + "?length=65536&offset=" + offset)
		if got.code != http.StatusOK || !bytes.Equal(got.body, bytes.Repeat([]byte{value}, 64<<10)) {
			t.Errorf("at %s: status %d, %d bytes", offset, got.code, len(got.body))
		}
	}
	if w.server.Close(); w.exporter.Report().Unread != 0 {
		t.Errorf("the report is %+v", w.exporter.Report())
	}
}

// forward connects to the exporter as the agent does, and to the socket as soon as the exporter uses the connection.
func (w *pullWorld) forward(socket string) {
	w.t.Helper()
	conn, err := w.dial(w.t.Context(), agentName, content.AgentProtocol)
	must(w.t, err)
	go func() {
		defer func() { _ = conn.Close() }()
		first := make([]byte, 512)
		n, err := conn.Read(first)
		if err != nil {
			return
		}
		qemu, err := (&net.Dialer{}).DialContext(w.t.Context(), "unix", socket)
		if err != nil {
			return
		}
		defer func() { _ = qemu.Close() }()
		go func() { _, _ = io.Copy(conn, qemu) }()
		_, _ = io.Copy(qemu, io.MultiReader(bytes.NewReader(first[:n]), conn))
	}()
}
