// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/vireo-project/vireo/hack/cluster/csi/internal/loop"
)

// A writer increments a counter at the start of a device, and then the same one at its end. In every moment the first
// is as large as the second, or larger by one.
func TestSnapshotInUseIsOfOneMoment(t *testing.T) {
	w := newWorld(t)
	c := w.create("disk", capability(true, once), gib, nil)
	path := c.mount(0)
	const last = gib - 4096
	ctx, stop := context.WithCancel(t.Context())
	started, done := make(chan struct{}), make(chan error)
	go func() { done <- count(ctx, []place{{path, 0}, {path, last}}, started) }()
	<-started
	var before uint64
	for i := range 10 {
		restored := w.create(fmt.Sprintf("restored%d", i), c.use, gib, w.snapshot(fmt.Sprintf("snapshot%d", i), c))
		disk, err := w.pool.Volumes.Open(restored.id)
		if err != nil {
			t.Fatal(err)
		}
		first, second := counter(t, disk, 0), counter(t, disk, last)
		if first != second && first != second+1 || first < before {
			t.Errorf("snapshot %d has the counters %d and %d after %d", i, first, second, before)
		}
		before = first
		_ = disk.Close()
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if before == 0 {
		t.Error("no snapshot has anything of what was written")
	}
}

// place is where a counter is.
type place struct {
	path   string
	offset int64
}

// count writes a counter to one place after the other, past the page cache as QEMU does, until the context ends.
func count(ctx context.Context, places []place, started chan<- struct{}) error {
	var devices []*os.File
	for _, p := range places {
		device, err := os.OpenFile(p.path, os.O_RDWR|unix.O_DIRECT, 0)
		if err != nil {
			return err
		}
		defer func() { _ = device.Close() }()
		devices = append(devices, device)
	}
	buffer := make([]byte, 8192)
	aligned := buffer[4096-int(uintptr(unsafe.Pointer(&buffer[0]))%4096):][:4096]
	for i := uint64(1); ctx.Err() == nil; i++ {
		binary.LittleEndian.PutUint64(aligned, i)
		for n, p := range places {
			if _, err := devices[n].WriteAt(aligned, p.offset); err != nil {
				return err
			}
		}
		if i == 1 {
			close(started)
		}
	}
	return nil
}

func counter(t *testing.T, disk *os.File, offset int64) uint64 {
	t.Helper()
	buffer := make([]byte, 8)
	if _, err := disk.ReadAt(buffer, offset); err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(buffer)
}

// After a reboot nothing is attached, and what a killed controller has left may be.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	used := w.create("used", capability(false, once), gib, nil)
	file := filepath.Join(used.mount(0), "file")
	unused := w.create("unused", capability(true, once), gib, nil)
	disk, err := w.pool.Volumes.Open(unused.id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := loop.Attach(disk); err != nil {
		t.Fatal(err)
	}
	_ = disk.Close()
	half := filepath.Join(w.dir, "half-made", "vol-1")
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}

	w.restart()
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Errorf("the Pod lost its volume: %v", err)
	}
	if device := unused.device(); device != "" {
		t.Errorf("%s is attached, although no node uses it", device)
	}
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is half-made is still there: %v", err)
	}

	run(t, "umount", used.staging(0)+"-pod")
	run(t, "umount", used.staging(0))
	detachAll(t, w.dir)
	w.restart()
	if _, err := os.ReadFile(filepath.Join(used.mount(0), "file")); err != nil {
		t.Errorf("a node cannot mount its volume again: %v", err)
	}
}

// A device that was detached while it was in use is kept if a node needs it again.
func TestAttachAgainWhileInUse(t *testing.T) {
	w := newWorld(t)
	c := w.create("disk", capability(true, once), gib, nil)
	c.mount(0)
	// As the loop device does that a kubelet puts on top.
	user, err := os.Open(c.device())
	if err != nil {
		t.Fatal(err)
	}
	c.unmount(0)
	if err := c.attach(0); err != nil {
		t.Fatal(err)
	}
	if err := user.Close(); err != nil {
		t.Fatal(err)
	}
	if c.device() == "" {
		t.Error("the device is gone, although a node needs it")
	}
}

// The controller is killed again and again while it works. What was requested is done in the end, and nothing else is
// there.
func TestKilledController(t *testing.T) {
	dir := poolDir(t)
	connection, err := grpc.NewClient("unix:"+dir+".sock", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(
			grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1,
				MaxDelay: 5 * time.Millisecond}}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	client := csi.NewControllerClient(connection)
	for i := range 30 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+rand.IntN(100))*time.Millisecond)
		kill := serve(t, dir)
		if err := work(ctx, client, i%3); err != nil && ctx.Err() == nil {
			t.Errorf("run %d: %v", i, err)
		}
		<-ctx.Done()
		kill()
		cancel()
	}
	defer serve(t, dir)()
	if err := work(t.Context(), client, 2); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, pattern := range []string{"volumes/*", "snapshots/*", "half-made/*", "volumes/*/*.new"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	if len(left) != 0 {
		t.Errorf("this is left:\n%s", strings.Join(left, "\n"))
	}
}

// serve starts a controller, and returns a function that kills it.
func serve(t *testing.T, dir string) func() {
	t.Helper()
	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), serveVariable+"="+dir)
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}
}

// work creates volumes, a snapshot and a clone, or deletes them, or does both.
func work(ctx context.Context, client csi.ControllerClient, what int) error {
	use := capability(false, once)
	names := []string{"a", "b", "clone"}
	ids := map[string]string{}
	var snapshot string
	for _, name := range names {
		request := &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{use},
			CapacityRange: &csi.CapacityRange{RequiredBytes: gib}}
		if name == "clone" {
			s, err := client.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: ids["a"]})
			if err != nil {
				return err
			}
			snapshot = s.GetSnapshot().GetSnapshotId()
			request.CapacityRange.RequiredBytes = 2 * gib
			request.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
				Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot},
			}}
		}
		v, err := client.CreateVolume(ctx, request)
		if err != nil {
			return err
		}
		ids[name] = v.GetVolume().GetVolumeId()
		if _, err := client.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: ids[name], CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * gib},
		}); err != nil {
			return err
		}
	}
	if what == 0 {
		return nil
	}
	if _, err := client.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: snapshot}); err != nil {
		return err
	}
	for _, name := range names[:1+what] {
		if _, err := client.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: ids[name]}); err != nil {
			return err
		}
	}
	return nil
}
