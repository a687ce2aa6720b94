// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

func TestFilesystemOnTwoNodes(t *testing.T) {
	w := newWorld(t)
	c := w.create("shared", capability(false, many), gib, nil)
	first, second := c.mount(0), c.mount(1)
	if err := os.WriteFile(filepath.Join(first, "file"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(second, "file"))
	if err != nil || string(got) != "hello" {
		t.Errorf("the second node reads %q, %v", got, err)
	}
	c.unmount(0)
	if c.device() == "" {
		t.Error("the device is gone, although a node uses it")
	}
	if _, err := os.Stat(filepath.Join(second, "file")); err != nil {
		t.Error(err)
	}
	c.unmount(1)
	if device := c.device(); device != "" {
		t.Errorf("%s is attached, although no node uses it", device)
	}
}

func TestBlockOnTwoNodes(t *testing.T) {
	w := newWorld(t)
	c := w.create("shared", capability(true, many), gib, nil)
	first, second := c.mount(0), c.mount(1)
	// Both are through the device's page cache.
	if err := os.WriteFile(first, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := head(t, second, 5); got != "hello" {
		t.Errorf("the second node reads %q", got)
	}
	c.unmount(0)
	c.unmount(1)
	if device := c.device(); device != "" {
		t.Errorf("%s is attached, although no node uses it", device)
	}
}

func TestOnlyOneNode(t *testing.T) {
	w := newWorld(t)
	c := w.create("single", capability(false, once), gib, nil)
	c.mount(0)
	expectCode(t, c.attach(1), codes.FailedPrecondition)
	_, err := w.controller.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: c.id})
	expectCode(t, err, codes.FailedPrecondition)
	if err := c.publish(0, c.staging(0)+"-other"); err != nil {
		t.Errorf("a second Pod of the node cannot use it: %v", err)
	}
	c.unpublish(0, c.staging(0)+"-other")
	c.unmount(0)
	expectCode(t, c.attach(1), codes.OK)
}

func TestOnlyOnePod(t *testing.T) {
	w := newWorld(t)
	for _, block := range []bool{false, true} {
		c := w.create("pod"+map[bool]string{true: "block"}[block], capability(block, pod), gib, nil)
		target := c.mount(0)
		expectCode(t, c.publish(0, target), codes.OK)
		expectCode(t, c.publish(0, target+"-other"), codes.FailedPrecondition)
	}
}

func TestReadOnlyPod(t *testing.T) {
	w := newWorld(t)
	c := w.create("shared", capability(false, many), gib, nil)
	c.mount(0)
	if err := c.attach(0); err != nil {
		t.Fatal(err)
	}
	target := c.staging(0) + "-reader"
	if _, err := w.nodes[0].NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: c.id, StagingTargetPath: c.staging(0), TargetPath: target, VolumeCapability: c.use, Readonly: true,
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(target, "file"), nil, 0o600); err == nil ||
		!strings.Contains(err.Error(), "read-only") {
		t.Errorf("a Pod that may only read got %v", err)
	}
	run(t, "umount", target)
}

func TestExpandInUse(t *testing.T) {
	w := newWorld(t)
	files := w.create("files", capability(false, many), gib, nil)
	first, second := files.mount(0), files.mount(1)
	files.expand(3 * gib)
	// On one node: it is the same filesystem.
	response, err := w.nodes[0].NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: files.id, VolumePath: first, StagingTargetPath: files.staging(0),
		CapacityRange: &csi.CapacityRange{RequiredBytes: 3 * gib},
	})
	if err != nil || response.GetCapacityBytes() != 3*gib {
		t.Errorf("the node expanded it to %v, %v", response, err)
	}
	for _, path := range []string{first, second} {
		if size := space(t, path); size < 2900*mib {
			t.Errorf("%s has %d MiB", path, size/mib)
		}
	}

	block := w.create("block", capability(true, once), gib, nil)
	path := block.mount(0)
	block.expand(3 * gib)
	if size := deviceSize(t, path); size != 3*gib {
		t.Errorf("the device has %d bytes", size)
	}
}

func TestExpandWhileDetached(t *testing.T) {
	w := newWorld(t)
	c := w.create("files", capability(false, once), gib, nil)
	c.unmount(0) // it was never mounted
	c.expand(3 * gib)
	if size := space(t, c.mount(0)); size < 2900*mib {
		t.Errorf("the filesystem has %d MiB", size/mib)
	}
}

func TestLargerCloneBesideItsSource(t *testing.T) {
	w := newWorld(t)
	source := w.create("source", capability(false, once), gib, nil)
	file := filepath.Join(source.mount(0), "file")
	if err := os.WriteFile(file, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "sync", "-f", file)
	snapshot := w.snapshot("snapshot", source)
	direct := w.create("direct", capability(false, once), 0,
		&csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: source.id},
		}})
	if err := os.WriteFile(file, []byte("after"), 0o600); err != nil {
		t.Fatal(err)
	}
	restored := w.create("restored", capability(false, once), 2*gib, snapshot)
	for _, c := range []claim{direct, restored} {
		path := c.mount(0)
		if got, err := os.ReadFile(filepath.Join(path, "file")); err != nil || string(got) != "before" {
			t.Errorf("the clone has %q, %v", got, err)
		}
		if c == restored && space(t, path) < 1900*mib {
			t.Errorf("the clone's filesystem has %d MiB", space(t, path)/mib)
		}
	}
	// A clone smaller than its content cannot be.
	_, err := w.controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "small", VolumeCapabilities: []*csi.VolumeCapability{source.use}, VolumeContentSource: snapshot,
		CapacityRange: &csi.CapacityRange{RequiredBytes: gib / 2},
	})
	expectCode(t, err, codes.OutOfRange)
}

// A full volume is full: what is written to it does not take the space of others.
func TestSizeIsALimit(t *testing.T) {
	w := newWorld(t)
	c := w.create("small", capability(false, once), 64*mib, nil)
	err := os.WriteFile(filepath.Join(c.mount(0), "file"), make([]byte, 65*mib), 0o600)
	expectCode(t, err, codes.ResourceExhausted)
}

func TestNamesAreNoPaths(t *testing.T) {
	w := newWorld(t)
	name := "../../../etc/passwd\x00" + strings.Repeat("/x", 500)
	c := w.create(name, capability(true, once), mib, nil)
	if again := w.create(name, capability(true, once), mib, nil); again.id != c.id {
		t.Errorf("the same name has the IDs %s and %s", c.id, again.id)
	}
	for _, id := range []string{"../" + c.id, c.id + "/../" + c.id, ".", "/", "vol-", "vol-" + strings.Repeat("../", 16)} {
		if _, err := w.controller.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
			t.Errorf("delete %q: %v", id, err)
		}
		_, err := w.controller.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "x", SourceVolumeId: id})
		expectCode(t, err, codes.NotFound)
		_, err = w.controller.ControllerPublishVolume(t.Context(),
			&csi.ControllerPublishVolumeRequest{VolumeId: c.id, NodeId: id, VolumeCapability: c.use})
		expectCode(t, err, codes.NotFound)
	}
	if _, err := w.pool.Volumes.Get(c.id); err != nil {
		t.Error(err)
	}
}

func head(t *testing.T, path string, length int) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	buffer := make([]byte, length)
	if _, err := file.ReadAt(buffer, 0); err != nil {
		t.Fatal(err)
	}
	return string(buffer)
}

// space returns how many bytes of a filesystem can be used.
func space(t *testing.T, path string) int64 {
	t.Helper()
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		t.Fatal(err)
	}
	return int64(stat.Bavail) * stat.Frsize
}

func deviceSize(t *testing.T, path string) int64 {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	size, err := file.Seek(0, unix.SEEK_END)
	if err != nil {
		t.Fatal(err)
	}
	return size
}
