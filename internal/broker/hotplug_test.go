// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

const (
	attachmentUID = "2b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11"
	// launcherRoot is set to the root directory of a process that the tests start as a launcher's.
	launcherRoot = "TEST_LAUNCHER_ROOT"
	// launcherVolume is set to the directory of its volume for hotplugged disks.
	launcherVolume = "TEST_LAUNCHER_VOLUME"
)

// beLauncher has the volume mounted, in a root directory and mounts of its own, and reads and writes disks: each line
// of its input is a path, of which it appends a byte to the file and responds with the content before.
func beLauncher(root string) {
	dir := filepath.Join(root, layout.HotplugDisksDir)
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount(os.Getenv(launcherVolume), dir, "", unix.MS_BIND, ""), unix.Chroot(root), os.Chdir("/"),
	)
	if err != nil {
		fmt.Println("cannot start:", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	for {
		var path string
		if _, err := fmt.Scanln(&path); err != nil {
			os.Exit(0)
		}
		content, err := os.ReadFile(path)
		f, openErr := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if openErr == nil {
			_, openErr = f.WriteString("x")
			_ = f.Close()
		}
		if err := errors.Join(err, openErr); err != nil {
			fmt.Printf("%q\n", err.Error())
			continue
		}
		fmt.Printf("%q\n", content)
	}
}

// hotplugWorld is a node with a launcher Pod that has mounts of its own, and an attachment Pod.
type hotplugWorld struct {
	*world
	// disks is the launcher's volume, and claim where the kubelet has mounted the claim.
	disks, claim string
	process      *os.Process
	use          func(name string) string
}

func newHotplugWorld(t *testing.T) *hotplugWorld {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	w := newWorld(t, nil)
	w.stop()
	w.addPod(podUID)
	h := &hotplugWorld{world: w,
		disks: filepath.Join(w.pods, podUID, "volumes/kubernetes.io~empty-dir", layout.HotplugDisksVolume)}
	h.claim = filepath.Join(w.pods, attachmentUID, "volumes/kubernetes.io~csi/pvc-1/mount")
	logs := t.TempDir()
	for _, dir := range []string{
		h.disks, h.claim, filepath.Join(w.root, layout.HotplugDisksDir), filepath.Join(logs, "ns_virt-launcher-a_"+podUID),
		filepath.Join(logs, "ns_"+layout.AttachmentPod(podUID, "data")+"_"+attachmentUID),
		filepath.Join(w.pods, attachmentUID, "volumes/kubernetes.io~projected/token"),
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("none", h.claim, "tmpfs", 0, ""); err != nil {
		t.Skip("cannot mount:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(h.claim, unix.MNT_DETACH) })
	h.writeClaim(layout.DiskImage, "image")
	h.startLauncher()
	h.logs, h.published = logs, filepath.Join(w.pods, "published")
	h.open = func(string) (*os.File, error) { return os.Open(os.DevNull) } // as the devices of most tests do not exist
	h.start(func(*net.UnixConn, string) (*os.File, error) { return os.Open(fmt.Sprintf("/proc/%d", h.process.Pid)) })
	return h
}

func (h *hotplugWorld) startLauncher() {
	h.t.Helper()
	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), launcherRoot+"="+h.root, launcherVolume+"="+h.disks)
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	command.Stderr = os.Stderr
	in, errIn := command.StdinPipe()
	out, errOut := command.StdoutPipe()
	if err := errors.Join(errIn, errOut, command.Start()); err != nil {
		h.t.Skip("cannot start a process with its own mounts:", err)
	}
	h.process = command.Process
	h.t.Cleanup(func() { _, _ = in.Close(), command.Wait() })
	var line string
	if _, err := fmt.Fscanln(out, &line); err != nil || line != "ready" {
		h.t.Fatal("the launcher did not start:", line, err)
	}
	h.use = func(name string) string {
		h.t.Helper()
		var answer string
		if _, err := fmt.Fprintln(in, filepath.Join(layout.HotplugDisksDir, name)); err != nil {
			h.t.Fatal(err)
		}
		if _, err := fmt.Fscanf(out, "%q\n", &answer); err != nil {
			h.t.Fatal(err)
		}
		return answer
	}
}

func (h *hotplugWorld) writeClaim(name, content string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.claim, name), []byte(content), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hotplugWorld) attach(volume string, attachment string, block bool) error {
	return h.ask(requestOf(h.t, brokerapi.AttachVolume, podUID,
		brokerapi.VolumeArguments{Volume: volume, Attachment: attachment, Block: block}))
}

func (h *hotplugWorld) detach(volume string, block bool) error {
	return h.ask(requestOf(h.t, brokerapi.DetachVolume, podUID,
		brokerapi.VolumeArguments{Volume: volume, Attachment: attachmentUID, Block: block}))
}

func (h *hotplugWorld) expectEntries(want ...string) {
	h.t.Helper()
	entries, err := os.ReadDir(h.disks)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if err != nil || strings.Join(names, " ") != strings.Join(want, " ") {
		h.t.Errorf("the directory has %q, %v, want %q", names, err, want)
	}
}

func TestImageIsMountedInTheLauncherOnly(t *testing.T) {
	h := newHotplugWorld(t)
	for range 2 { // the second time changes nothing
		if err := h.attach("data", attachmentUID, false); err != nil {
			t.Fatal(err)
		}
	}
	if got := h.use("data.img"); got != "image" {
		t.Errorf("the launcher reads %q", got)
	}
	if got, err := os.ReadFile(filepath.Join(h.claim, layout.DiskImage)); err != nil || string(got) != "imagex" {
		t.Errorf("the claim has %q, %v", got, err)
	}
	if got, err := os.ReadFile(filepath.Join(h.disks, "data.img")); err != nil || len(got) > 0 {
		t.Errorf("outside of the launcher there is %q, %v", got, err)
	}
	// The kubelet can unmount the claim, whatever the launcher has.
	if err := unix.Unmount(h.claim, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if got := h.use("data.img"); got != "imagex" {
		t.Errorf("after the end of the attachment Pod, the launcher reads %q", got)
	}
	for range 2 {
		if err := h.detach("data", false); err != nil {
			t.Fatal(err)
		}
	}
	h.expectEntries()
	if got := h.use("data.img"); !strings.Contains(got, "no such file") {
		t.Errorf("the launcher reads %q", got)
	}
}

func TestWaitForTheContainerOfTheAttachmentPod(t *testing.T) {
	h := newHotplugWorld(t)
	arguments := brokerapi.VolumeArguments{Volume: "data", Attachment: attachmentUID, Wait: true}
	request, done := requestOf(t, brokerapi.AttachVolume, podUID, arguments), make(chan error, 1)
	go func() { done <- h.ask(request) }()
	waits := func(when string) {
		t.Helper()
		select {
		case err := <-done:
			t.Fatalf("%s: got %v", when, err)
		case <-time.After(100 * time.Millisecond):
		}
		h.expectEntries()
	}
	waits("the kubelet has not begun to start the container")
	logs := filepath.Join(h.logs, "ns_"+layout.AttachmentPod(podUID, "data")+"_"+attachmentUID, layout.AttachmentContainer)
	if err := os.Mkdir(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	waits("the container has no log yet")
	if err := os.WriteFile(filepath.Join(logs, "0.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := h.use("data.img"); got != "image" {
		t.Errorf("the launcher reads %q", got)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := h.client().Files(podUID).AttachDevice(ctx, "other", attachmentUID); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("without the attachment Pod: %v", err)
	}
	expectCode(t, h.ask(requestOf(t, brokerapi.DetachVolume, podUID, arguments)), brokerapi.CodeInvalid)
}

// attachDir attaches all of the claim.
func (h *hotplugWorld) attachDir(volume string) error {
	arguments := brokerapi.VolumeArguments{Volume: volume, Attachment: attachmentUID, Directory: true}
	return h.ask(requestOf(h.t, brokerapi.AttachVolume, podUID, arguments))
}

func TestDirectoryIsMountedInTheLauncherOnly(t *testing.T) {
	h := newHotplugWorld(t)
	for range 2 { // the second time changes nothing
		if err := h.attachDir("data"); err != nil {
			t.Fatal(err)
		}
	}
	h.expectEntries("data")
	if got := h.use("data/" + layout.DiskImage); got != "image" {
		t.Errorf("the launcher reads %q", got)
	}
	if got, err := os.ReadFile(filepath.Join(h.claim, layout.DiskImage)); err != nil || string(got) != "imagex" {
		t.Errorf("the claim has %q, %v", got, err)
	}
	if entries, err := os.ReadDir(filepath.Join(h.disks, "data")); err != nil || len(entries) > 0 {
		t.Errorf("outside of the launcher there is %v, %v", entries, err)
	}
	flags, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", h.process.Pid))
	if err != nil || !strings.Contains(string(flags), layout.HotplugDisksDir+"/data rw,nosuid,nodev,noexec") {
		t.Errorf("the launcher has the mounts %s, %v", flags, err)
	}
	for range 2 {
		if err := h.detach("data", false); err != nil {
			t.Fatal(err)
		}
	}
	h.expectEntries()
	if got := h.use("data/" + layout.DiskImage); !strings.Contains(got, "no such file") {
		t.Errorf("the launcher reads %q", got)
	}
}

func TestDirectoryOfALauncherThatHasSomethingInItsPlace(t *testing.T) {
	h := newHotplugWorld(t)
	place := filepath.Join(h.disks, "data")
	for name, put := range map[string]func() error{
		"a link":   func() error { return os.Symlink(t.TempDir(), place) },
		"a file":   func() error { return os.WriteFile(place, nil, 0o600) },
		"a pipe":   func() error { return unix.Mkfifo(place, 0o600) },
		"a device": func() error { return unix.Mknod(place, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))) },
	} {
		if err := put(); err != nil {
			t.Fatal(err)
		}
		if err := h.attachDir("data"); err == nil {
			t.Errorf("the claim was mounted on %s", name)
		}
		if err := os.Remove(place); err != nil {
			t.Errorf("%s is gone: %v", name, err)
		}
	}
	// What it leaves in the directory stays below the mount.
	if err := errors.Join(os.Mkdir(place, 0o700),
		os.WriteFile(filepath.Join(place, layout.DiskImage), []byte("own"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := h.attachDir("data"); err != nil {
		t.Fatal(err)
	}
	if got := h.use("data/" + layout.DiskImage); got != "image" {
		t.Errorf("the launcher reads %q", got)
	}
	if err := h.detach("data", false); err == nil {
		t.Error("nothing says that files are left")
	}
	if got := h.use("data/" + layout.DiskImage); got != "own" {
		t.Errorf("after the volume was detached, the launcher reads %q", got)
	}
}

func TestDirectoryOfAnAttachmentPodWithoutAMount(t *testing.T) {
	h := newHotplugWorld(t)
	if err := unix.Unmount(h.claim, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	expectCode(t, h.attachDir("data"), brokerapi.CodeRefused)
	arguments := brokerapi.VolumeArguments{Volume: "data", Attachment: attachmentUID, Directory: true, Block: true}
	expectCode(t, h.ask(requestOf(t, brokerapi.AttachVolume, podUID, arguments)), brokerapi.CodeInvalid)
	h.expectEntries()
}

func TestAnotherFileIsNotMountedOverAnImage(t *testing.T) {
	h := newHotplugWorld(t)
	if err := h.attach("data", attachmentUID, false); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(h.claim, layout.DiskImage)); err != nil {
		t.Fatal(err)
	}
	h.writeClaim(layout.DiskImage, "other")
	if err := h.attach("data", attachmentUID, false); err == nil || !strings.Contains(err.Error(), "has another file") {
		t.Errorf("got %v", err)
	}
	if got := h.use("data.img"); got != "image" {
		t.Errorf("the launcher reads %q", got)
	}
}

func TestHostileClaims(t *testing.T) {
	h := newHotplugWorld(t)
	image := filepath.Join(h.claim, layout.DiskImage)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("of the node"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.writeClaim("other", "x")
	for name, replace := range map[string]func() error{
		"nothing":                func() error { return nil },
		"a link to the node":     func() error { return os.Symlink(outside, image) },
		"a link in the claim":    func() error { return os.Symlink("other", image) },
		"a link that climbs":     func() error { return os.Symlink("../../../../../etc/passwd", image) },
		"a link to the kernel's": func() error { return os.Symlink("/proc/1/mem", image) },
		"a directory":            func() error { return os.Mkdir(image, 0o755) },
		"a pipe":                 func() error { return unix.Mkfifo(image, 0o600) },
		"a device":               func() error { return unix.Mknod(image, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))) },
	} {
		if err := errors.Join(os.RemoveAll(image), replace()); err != nil {
			t.Fatal(err)
		}
		if err := h.attach("data", attachmentUID, false); err == nil {
			t.Errorf("%s was mounted", name)
		}
		h.expectEntries()
	}
	// A file of another file system, which only root can mount there.
	if err := errors.Join(os.RemoveAll(image), os.WriteFile(image, nil, 0o600),
		unix.Mount("/proc/version", image, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(image, unix.MNT_DETACH) }()
	if err := h.attach("data", attachmentUID, false); err == nil {
		t.Error("another file system was mounted")
	}
}

func TestPodsThatAreNoAttachments(t *testing.T) {
	h := newHotplugWorld(t)
	claims := func(pod string) string { return filepath.Join(h.pods, pod, "volumes/kubernetes.io~csi") }
	named := func(name string) func(string) error {
		return func(pod string) error { return os.Mkdir(filepath.Join(h.logs, name+"_"+pod), 0o755) }
	}
	for name, prepare := range map[string]func(pod string) error{
		"another name":      named("ns_virt-launcher-b"),
		"another namespace": named("other_" + layout.AttachmentPod(podUID, "data")),
		"another launcher":  named("ns_" + layout.AttachmentPod(otherUID, "data")),
		"another volume":    named("ns_" + layout.AttachmentPod(podUID, "data2")),
		"not on the node":   func(string) error { return nil },
		"not mounted":       named("ns_" + layout.AttachmentPod(podUID, "data")),
	} {
		pod := strings.ReplaceAll(name, " ", "-")
		mount := filepath.Join(claims(pod), "pvc-2/mount")
		if err := errors.Join(os.MkdirAll(mount, 0o755), os.WriteFile(filepath.Join(mount, layout.DiskImage), nil, 0o600),
			prepare(pod)); err != nil {
			t.Fatal(err)
		}
		for _, block := range []bool{false, true} {
			if err := h.attach("data", pod, block); err == nil {
				t.Errorf("%s, block %v: it was attached", name, block)
			}
		}
	}
	if err := os.MkdirAll(filepath.Join(claims(attachmentUID), "pvc-2/mount"), 0o755); err != nil {
		t.Fatal(err)
	}
	expectCode(t, h.attach("data", attachmentUID, false), brokerapi.CodeRefused)
	h.expectEntries()
}

// A launcher that changes its directory all the time gets the file of the claim somewhere in it, or an error.
func TestALauncherThatSwapsPaths(t *testing.T) {
	h := newHotplugWorld(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("of the node"), 0o600); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(h.disks, "data.img")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = os.Remove(name)
			_ = os.Symlink(outside, name)
			_ = os.Remove(name)
			_ = unix.Mkfifo(name, 0o600)
			_ = os.Rename(name, name+".moved")
			_ = os.Mkdir(name, 0o755)
			_ = os.Remove(name)
			_ = os.WriteFile(name, nil, 0o600)
			_ = os.Rename(name, name+".moved")
		}
	}()
	attached := 0
	for range 200 {
		if h.attach("data", attachmentUID, false) == nil {
			attached++
		}
		_ = h.detach("data", false)
	}
	stop()
	<-done
	t.Log("attached", attached)
	if got, err := os.ReadFile(outside); err != nil || string(got) != "of the node" {
		t.Errorf("%q, %v", got, err)
	}
	if mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", h.process.Pid)); err != nil ||
		strings.Contains(string(mounts), outside) {
		t.Errorf("the launcher has\n%s%v", mounts, err)
	}
	h.expectAlive()
}

// The kubelet's volume, and no other directory, is used.
func TestALauncherWithAnotherDirectory(t *testing.T) {
	h := newHotplugWorld(t)
	if err := os.Rename(h.disks, h.disks+"-moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(h.disks, 0o755); err != nil {
		t.Fatal(err)
	}
	expectCode(t, h.attach("data", attachmentUID, false), brokerapi.CodeRefused)
	h.expectEntries()
}

// blockDevice is a device number of a loop device, which need not exist.
var blockDevice = unix.Mkdev(7, 117)

// link is the kubelet's link to the device of a Pod.
func (h *hotplugWorld) link(pod string) string {
	return filepath.Join(h.pods, pod, "volumeDevices/kubernetes.io~csi/pvc-3")
}

// publish publishes a device as the kubelet and a CSI driver do.
func (h *hotplugWorld) publish(pod string, number uint64) {
	h.t.Helper()
	published, link := filepath.Join(h.published, "publish/pvc-3", pod), h.link(pod)
	err := errors.Join(
		os.MkdirAll(filepath.Dir(published), 0o755), os.MkdirAll(filepath.Dir(link), 0o755),
		os.Symlink("/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-3/"+pod, link),
	)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := unix.Mknod(published, unix.S_IFBLK|0o600, int(number)); err != nil {
		h.t.Skip("cannot make a device file:", err)
	}
}

// confine moves the launcher to a cgroup of a container of its Pod that may use no device, and returns the rules of
// that.
func (h *hotplugWorld) confine() func() string {
	h.t.Helper()
	root := "/sys/fs/cgroup/devices"
	pod := filepath.Join(root, "pod"+podUID)
	dir := filepath.Join(pod, "container")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.t.Skip("needs cgroup v1:", err)
	}
	h.t.Cleanup(func() {
		_ = h.process.Kill()
		for range 100 {
			if os.Remove(dir) == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		_ = os.Remove(pod)
	})
	for _, write := range [][2]string{
		{"devices.deny", "a"}, {"devices.allow", "b *:* m"}, {"devices.allow", "c 1:3 rwm"}, {"cgroup.procs", fmt.Sprint(h.process.Pid)},
	} {
		if err := os.WriteFile(filepath.Join(dir, write[0]), []byte(write[1]), 0); err != nil {
			h.t.Skip("needs cgroup v1:", err)
		}
	}
	return func() string {
		h.t.Helper()
		rules, err := os.ReadFile(filepath.Join(dir, "devices.list"))
		if err != nil {
			h.t.Fatal(err)
		}
		return strings.ReplaceAll(strings.TrimPrefix(string(rules), "b *:* m\nc 1:3 rwm\n"), "\n", ";")
	}
}

func TestBlockDevice(t *testing.T) {
	h := newHotplugWorld(t)
	rules := h.confine()
	h.publish(attachmentUID, blockDevice)
	for range 2 {
		if err := h.attach("data", attachmentUID, true); err != nil {
			t.Fatal(err)
		}
		var stat unix.Stat_t
		if err := unix.Stat(filepath.Join(h.disks, "data"), &stat); err != nil || stat.Rdev != blockDevice ||
			stat.Mode&unix.S_IFMT != unix.S_IFBLK ||
			stat.Uid != layout.QEMUUser || stat.Mode&0o777 != 0o600 {
			t.Errorf("the device file is %+v, %v", stat, err)
		}
		if got := rules(); got != "b 7:117 rw;" {
			t.Errorf("the rules are %q", got)
		}
	}
	if got := h.use("data"); strings.Contains(got, "not permitted") {
		t.Errorf("the launcher gets %q", got)
	}
	for range 2 {
		if err := h.detach("data", true); err != nil {
			t.Fatal(err)
		}
		if got := rules(); got != "" {
			t.Errorf("the rules are %q", got)
		}
		h.expectEntries()
	}
}

// A launcher that hides its device file keeps no right to use the device, even if nobody asks for its removal: the
// number is used again. Nor can it hide itself, or delay the broker, by any means that it has.
func TestADeviceIsTakenBackWithItsVolume(t *testing.T) {
	nothing := func(*testing.T, *hotplugWorld) {}
	for name, hide := range map[string]func(*testing.T, *hotplugWorld){
		"itself": nothing,
		"its socket": func(t *testing.T, h *hotplugWorld) {
			if err := os.RemoveAll(
				filepath.Join(h.pods, podUID, "volumes/kubernetes.io~empty-dir", layout.SocketsVolume)); err != nil {
				t.Fatal(err)
			}
			h.broker.Pods.Close() // as after a restart of the broker
		},
		"behind a request that hangs": func(t *testing.T, h *hotplugWorld) {
			hang, hanging, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				got, _ := server.Task{Limit: h.broker.hotplug, Run: func(context.Context) (server.Output, error) {
					close(hanging)
					<-hang
					return server.Output{}, nil
				}}.Do(context.Background(), podUID)
				got.Close()
			}()
			<-hanging
			t.Cleanup(func() { close(hang); <-done })
		},
		"behind Pods whose files hang": func(t *testing.T, h *hotplugWorld) {
			h.addPod(otherUID)
			if err := os.MkdirAll(filepath.Join(h.pods, otherUID, "volumes/kubernetes.io~empty-dir", layout.HotplugDisksVolume),
				0o755); err != nil {
				t.Fatal(err)
			}
			h.stop()
			hang := make(chan struct{})
			h.start(func(_ *net.UnixConn, pod string) (*os.File, error) {
				if pod == otherUID {
					<-hang
				}
				return nil, os.ErrNotExist
			})
			t.Cleanup(func() { close(hang) })
		},
	} {
		t.Run(name, func(t *testing.T) { expectTakenBack(t, func(h *hotplugWorld) { hide(t, h) }) })
	}
}

func expectTakenBack(t *testing.T, hide func(*hotplugWorld)) {
	t.Helper()
	h := newHotplugWorld(t)
	rules := h.confine()
	h.publish(attachmentUID, blockDevice)
	if err := h.attach("data", attachmentUID, true); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(h.disks, "data"), filepath.Join(h.disks, "hidden")); err != nil {
		t.Fatal(err)
	}
	hide(h)
	if err := h.broker.sweepDevices(); err != nil || rules() != "b 7:117 rw;" {
		t.Errorf("while the volume exists: %v, %q", err, rules())
	}
	if err := os.RemoveAll(filepath.Join(h.pods, attachmentUID, "volumeDevices")); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := h.broker.sweepDevices(); err != nil || rules() != "" || time.Since(start) > brokerapi.VerbTimeout/2 {
		t.Errorf("after the volume: %v, %q, after %s", err, rules(), time.Since(start))
	}
	if got := h.use("hidden"); !strings.Contains(got, "not permitted") {
		t.Errorf("the launcher gets %q", got)
	}
}

func TestHostileDevices(t *testing.T) {
	h := newHotplugWorld(t)
	rules := h.confine()
	link := h.link(attachmentUID)
	h.publish(attachmentUID, unix.Mkdev(1, 3))
	published := filepath.Join(h.published, "publish/pvc-3", attachmentUID)
	for name, replace := range map[string]func() error{
		"a character device": func() error {
			return errors.Join(os.Remove(published), unix.Mknod(published, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
		},
		"a file":          func() error { return errors.Join(os.Remove(published), os.WriteFile(published, nil, 0o600)) },
		"outside of /dev": func() error { return errors.Join(os.Remove(link), os.Symlink("/dev/../etc/passwd", link)) },
		"elsewhere":       func() error { return errors.Join(os.Remove(link), os.Symlink("/srv/disk", link)) },
		"no link":         func() error { return errors.Join(os.Remove(link), os.WriteFile(link, nil, 0o600)) },
		"nothing":         func() error { return os.Remove(link) },
	} {
		if err := replace(); err != nil && name != "nothing" {
			t.Fatal(name, err)
		}
		if err := h.attach("data", attachmentUID, true); err == nil {
			t.Errorf("%s was attached", name)
		}
		h.expectEntries()
		if got := rules(); got != "" {
			t.Errorf("%s: the rules are %q", name, got)
		}
		if _, err := os.Lstat(link); err != nil {
			if err := os.RemoveAll(filepath.Join(h.pods, attachmentUID, "volumeDevices")); err != nil {
				t.Fatal(err)
			}
			_ = os.RemoveAll(published)
			h.publish(attachmentUID, unix.Mkdev(1, 3))
		}
	}
	h.expectAlive()
}
