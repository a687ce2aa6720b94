// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// swapRounds is how often a volume is attached and detached, and at least how often all paths are changed meanwhile.
const swapRounds = 200

// whileSwapping repeats do while the steps are repeated in another goroutine. Each step may fail: it may find what
// attach has left.
func whileSwapping(t *testing.T, steps []func() error, do func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var swaps atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			for _, step := range steps {
				_ = step()
			}
			swaps.Add(1)
		}
	}()
	defer func() {
		stop()
		<-done
	}()
	rounds := 0
	for begin := time.Now(); rounds < swapRounds || swaps.Load() < swapRounds && time.Since(begin) < patience; rounds++ {
		do()
	}
	t.Logf("%d rounds, and %d swaps", rounds, swaps.Load())
}

func pause(d time.Duration) error {
	time.Sleep(d)
	return nil
}

// outsideOf makes a directory of the node with the same entries as the launcher's, and returns it and a check that it
// is unchanged and that no one has mounted anything in it.
func (h *hotplugWorld) outsideOf() (dir string, check func()) {
	h.t.Helper()
	dir = filepath.Join(h.t.TempDir(), "outside")
	disks := filepath.Join(dir, filepath.Base(layout.HotplugDisksDir))
	image := filepath.Join(disks, "data.img")
	if err := errors.Join(os.MkdirAll(disks, 0o755), os.WriteFile(image, []byte("of the node"), 0o600)); err != nil {
		h.t.Fatal(err)
	}
	return dir, func() {
		h.t.Helper()
		var stat unix.Stat_t
		got, err := os.ReadFile(image)
		if err != nil || string(got) != "of the node" || unix.Stat(image, &stat) != nil || stat.Uid != 0 ||
			stat.Mode&0o777 != 0o600 {
			h.t.Errorf("the node's file has %q, %v, and is %+v", got, err, stat)
		}
		entries, err := os.ReadDir(disks)
		if err != nil || len(entries) != 1 {
			h.t.Errorf("the node's directory has %v, %v", entries, err)
		}
		for _, pid := range []int{os.Getpid(), h.process.Pid} {
			mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
			if err != nil || strings.Contains(string(mounts), "/outside") {
				h.t.Errorf("something is mounted in the node's directory:\n%s%v", mounts, err)
			}
		}
	}
}

// expectClaimOnly checks that an entry of the launcher's directory is a file of the claim, or the empty one on which it
// would be mounted.
func (h *hotplugWorld) expectClaimOnly(name string) {
	h.t.Helper()
	root, err := os.Open(fmt.Sprintf("/proc/%d/root", h.process.Pid))
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	// As the launcher's processes resolve it, but a link at its end: the launcher may have any.
	fd, err := unix.Openat2(int(root.Fd()), filepath.Join(layout.HotplugDisksDir, name), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	var claim, disks, got unix.Stat_t
	if err := errors.Join(unix.Stat(h.claim, &claim), unix.Stat(h.disks, &disks), unix.Fstat(fd, &got)); err != nil {
		h.t.Fatal(err)
	}
	if got.Mode&unix.S_IFMT == unix.S_IFREG && got.Dev != claim.Dev && (got.Dev != disks.Dev || got.Size != 0) {
		h.t.Errorf("the launcher has a file of device %#x with %d bytes", got.Dev, got.Size)
	}
}

// The launcher exchanges a directory above its volume for links all the time, so that the same path leads elsewhere.
func TestALauncherThatSwapsItsDirectories(t *testing.T) {
	h := newHotplugWorld(t)
	outside, check := h.outsideOf()
	above := filepath.Join(h.root, filepath.Dir(layout.HotplugDisksDir))
	moved := above + ".moved"
	// The links are resolved from the launcher's root directory. From the node's, they lead to the directory outside.
	climbing := strings.Repeat("../", 32) + outside
	link := func(target string) []func() error {
		return []func() error{
			func() error { return unix.Rename(above, moved) },
			func() error { return os.Symlink(target, above) },
			func() error { return os.Remove(above) },
			func() error { return unix.Rename(moved, above) },
			func() error { return pause(time.Millisecond) }, // so that some requests begin with the right directory
		}
	}
	steps := append(link(outside), link(climbing)...)
	steps = append(steps, link("/proc/1/root"+outside)...)
	steps = append(steps, func() error {
		// A directory that is not the kubelet's volume.
		err := errors.Join(unix.Rename(above, moved),
			os.MkdirAll(filepath.Join(above, filepath.Base(layout.HotplugDisksDir)), 0o755))
		return errors.Join(err, os.RemoveAll(above), unix.Rename(moved, above))
	})
	attached := 0
	whileSwapping(t, steps, func() {
		if err := h.attach("data", attachmentUID, false); err == nil {
			attached++
		}
		h.expectClaimOnly("data.img")
		_ = h.detach("data", false)
	})
	t.Logf("attached %d times", attached)
	check()
	h.expectAlive()
	// The directory is back, and everything works.
	if err := h.attach("data", attachmentUID, false); err != nil {
		t.Fatal(err)
	}
	if got := h.use("data.img"); got != "image" {
		t.Errorf("the launcher reads %q", got)
	}
}

// Who else uses the claim exchanges the image for something else all the time.
func TestAClaimThatChanges(t *testing.T) {
	h := newHotplugWorld(t)
	outside, check := h.outsideOf()
	image := filepath.Join(h.claim, layout.DiskImage)
	put := func(what func(path string) error) func() error {
		return func() error {
			next := image + ".next"
			_ = os.RemoveAll(next)
			if err := what(next); err != nil {
				return err
			}
			// A rename does not replace a directory.
			if info, err := os.Lstat(image); err == nil && info.IsDir() {
				_ = os.Remove(image)
			}
			return os.Rename(next, image)
		}
	}
	file := put(func(path string) error { return os.WriteFile(path, []byte("image"), 0o600) })
	node := filepath.Join(outside, filepath.Base(layout.HotplugDisksDir), "data.img")
	attached := 0
	whileSwapping(t, []func() error{
		put(func(path string) error { return os.Symlink(node, path) }), file,
		put(func(path string) error { return unix.Mkfifo(path, 0o600) }), file,
		put(func(path string) error { return unix.Mknod(path, unix.S_IFBLK|0o600, int(blockDevice)) }), file,
		put(func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 1))) }), file,
		put(func(path string) error { return os.Mkdir(path, 0o755) }),
		func() error { return os.Remove(image) }, file,
	}, func() {
		if err := h.attach("data", attachmentUID, false); err == nil {
			attached++
			// A link would be followed, a pipe would block, and a device would be opened.
			if got := h.use("data.img"); strings.Trim(got, "x") != "image" {
				t.Errorf("the launcher reads %q", got)
			}
		}
		h.expectClaimOnly("data.img")
		_ = h.detach("data", false)
	})
	t.Logf("attached %d times", attached)
	check()
	h.expectAlive()
}

// What is wrong with a claim is said, because users see it in the status of the volume.
func TestErrorsAboutClaims(t *testing.T) {
	h := newHotplugWorld(t)
	image := filepath.Join(h.claim, layout.DiskImage)
	for want, replace := range map[string]func() error{
		"of the claim of attachment Pod " + attachmentUID +
			": openat2 disk.img: no such file or directory": func() error { return nil },
		"disk.img of the claim of attachment Pod " + attachmentUID +
			" is no regular file but L": func() error { return os.Symlink("/etc/passwd", image) },
		"disk.img of the claim of attachment Pod " + attachmentUID +
			" is no regular file but d": func() error { return os.Mkdir(image, 0o755) },
		"disk.img of the claim of attachment Pod " + attachmentUID +
			" is no regular file but p": func() error { return unix.Mkfifo(image, 0o600) },
		"disk.img of the claim of attachment Pod " + attachmentUID + " is no regular file but D": func() error {
			return unix.Mknod(image, unix.S_IFBLK|0o600, int(blockDevice))
		},
		"disk.img of the claim of attachment Pod " + attachmentUID + " is no regular file but S": func() error {
			return unix.Mknod(image, unix.S_IFSOCK|0o600, 0)
		},
	} {
		if err := errors.Join(os.RemoveAll(image), replace()); err != nil {
			t.Fatal(err)
		}
		if err := h.attach("data", attachmentUID, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		h.expectEntries()
	}
}

// The kubelet publishes another device for the same volume: the launcher gets that and loses the former one.
func TestABlockDeviceThatIsReplaced(t *testing.T) {
	h := newHotplugWorld(t)
	rules := h.confine()
	h.publish(attachmentUID, blockDevice)
	if err := h.attach("data", attachmentUID, true); err != nil {
		t.Fatal(err)
	}
	other := unix.Mkdev(7, 118)
	published := filepath.Join(h.published, "publish/pvc-3", attachmentUID)
	if err := errors.Join(os.Remove(published), unix.Mknod(published, unix.S_IFBLK|0o600, int(other))); err != nil {
		t.Fatal(err)
	}
	if err := h.attach("data", attachmentUID, true); err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(filepath.Join(h.disks, "data"), &stat); err != nil || stat.Rdev != other ||
		stat.Uid != layout.QEMUUser {
		t.Errorf("the device file is %+v, %v", stat, err)
	}
	if got := rules(); got != "b 7:118 rw;" {
		t.Errorf("the rules are %q", got)
	}

	// It is no device any more.
	if err := errors.Join(os.Remove(published), os.WriteFile(published, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := h.attach("data", attachmentUID, true); err == nil || !strings.Contains(err.Error(), "is no block device") {
		t.Errorf("got %v", err)
	}
	if err := h.broker.sweepDevices(); err != nil || rules() != "" {
		t.Errorf("without the device: %v, %q", err, rules())
	}
}

// The launcher exchanges the file of its device all the time, also for those of devices that it must not use.
func TestALauncherThatSwapsItsDevice(t *testing.T) {
	h := newHotplugWorld(t)
	rules := h.confine()
	h.publish(attachmentUID, blockDevice)
	outside, check := h.outsideOf()
	node := filepath.Join(outside, filepath.Base(layout.HotplugDisksDir), "data.img")
	name := filepath.Join(h.disks, "data")
	forbidden := filepath.Join(h.disks, "forbidden")
	if err := unix.Mknod(forbidden, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 119))); err != nil {
		t.Fatal(err)
	}
	whileSwapping(t, []func() error{
		func() error { return os.Remove(name) },
		func() error { return os.Symlink(node, name) },
		func() error { return os.Remove(name) },
		func() error { return os.Link(forbidden, name) },
		func() error { return os.Rename(name, name+".moved") },
		func() error { return os.Mkdir(name, 0o755) },
		func() error { return os.Remove(name) },
		func() error { return os.WriteFile(name, nil, 0o600) },
		func() error { return os.Rename(name, name+".moved") },
	}, func() {
		_ = h.attach("data", attachmentUID, true)
		if got := rules(); got != "" && got != "b 7:117 rw;" {
			t.Errorf("the rules are %q", got)
		}
		_ = h.detach("data", true)
	})
	var stat unix.Stat_t
	if err := unix.Lstat(forbidden, &stat); err != nil || stat.Uid != 0 {
		t.Errorf("another device was given to QEMU's user: %+v, %v", stat, err)
	}
	if got := h.use("forbidden"); !strings.Contains(got, "not permitted") {
		t.Errorf("the launcher gets %q", got)
	}
	check()
	if err := errors.Join(os.RemoveAll(name), h.attach("data", attachmentUID, true), h.detach("data", true)); err != nil {
		t.Error(err)
	}
	if got := rules(); got != "" {
		t.Errorf("the rules are %q", got)
	}
	h.expectAlive()
}
