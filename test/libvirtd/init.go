// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtd

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// initName is the argv[0] under which the test binary is the Pod's PID 1.
const initName = "vireo-test-libvirtd-init"

// hostname is the Pod's. libvirt resolves one without a dot each time it starts a guest. The kubelet adds a Pod's name
// to /etc/hosts, which the root file system does not have, and a query for it would be redirected to a guest with
// masquerade, which does not answer for seconds.
const hostname = "pod.test"

// lifeFD is a pipe that is closed when the test ends. A parent-death signal would be sent when the thread that started
// this process ends, which may be at any time in Go.
const lifeFD = 3

// initRequest is the request to PID 1 to run a program.
type initRequest struct {
	// Rootfs is the launcher image's root file system; it is not written to.
	Rootfs string
	// Run is the directory that becomes /run.
	Run string
	// KVM reports whether the Pod has /dev/kvm.
	KVM bool
}

func init() {
	if len(os.Args) != 2 || os.Args[0] != initName {
		return
	}
	var request initRequest
	err := json.Unmarshal([]byte(os.Args[1]), &request)
	if err == nil {
		err = runInit(request)
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", initName, err)
	os.Exit(1)
}

// runInit is PID 1. It returns only with an error.
func runInit(request initRequest) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.NewFile(lifeFD, "life"))
		os.Exit(0)
	}()
	unix.CloseOnExec(lifeFD)
	if err := mountRoot(request); err != nil {
		return err
	}
	if err := unix.Chroot(request.Rootfs); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := linkUp(); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	if err := unix.Sethostname([]byte(hostname)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	children := make(chan os.Signal, 64)
	signal.Notify(children, unix.SIGCHLD)
	daemon, err := startLibvirtd()
	if err != nil {
		return err
	}
	for range children {
		if err := reap(daemon.Process.Pid); err != nil {
			return err
		}
	}
	return nil
}

// fillCache fills libvirtd's cache as virt-launcher does. Without it, each daemon starts QEMU to probe it.
func fillCache(dir string) error {
	if err := launcher.FillQEMUCache(dir); err != nil {
		return err
	}
	return filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, launcherpod.QEMUUser, launcherpod.QEMUUser)
	})
}

func startLibvirtd() (*exec.Cmd, error) {
	cache := launcherpod.RuntimeDir + "/cache"
	if err := fillCache(cache); err != nil {
		fmt.Fprintf(os.Stderr, "libvirtd probes QEMU: %v\n", err)
	}
	daemon := exec.Command("/usr/sbin/libvirtd", "--config", "/usr/share/vireo/libvirt/libvirtd.conf")
	daemon.Env = []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + launcherpod.RuntimeDir + "/home",
		"XDG_RUNTIME_DIR=" + launcherpod.RuntimeDir + "/run",
		"XDG_CONFIG_HOME=" + launcherpod.RuntimeDir + "/config",
		"XDG_CACHE_HOME=" + cache,
		"TMPDIR=" + launcherpod.RuntimeDir + "/tmp",
	}
	daemon.Stdout, daemon.Stderr = os.Stdout, os.Stderr
	daemon.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: launcherpod.QEMUUser, Gid: launcherpod.QEMUUser},
	}
	if err := daemon.Start(); err != nil {
		return nil, fmt.Errorf("start libvirtd: %w", err)
	}
	return daemon, nil
}

// reap reaps every process that has ended. libvirt waits long for QEMUs that remain as zombies.
func reap(daemon int) error {
	for {
		var status unix.WaitStatus
		// The error says that there is no child left, which is as good as none that has ended.
		pid, _ := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if pid <= 0 {
			return nil
		}
		if pid == daemon {
			return fmt.Errorf("libvirtd ended: exit code %d, signal %d", status.ExitStatus(), status.Signal())
		}
	}
}

// mount is one call of mount(2), with its target in the root file system.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func mountRoot(request initRequest) error {
	root := request.Rootfs
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	mounts := []mount{
		{root, "", "", unix.MS_BIND, ""},
		{"proc", "proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY, ""},
		{"tmpfs", "dev", "tmpfs", unix.MS_NOSUID, "mode=755"},
		{request.Run, "run", "", unix.MS_BIND, ""},
		{"", "", "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY, ""},
	}
	for _, m := range mounts {
		if err := unix.Mount(m.source, filepath.Join(root, m.target), m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount /%s: %w", m.target, err)
		}
	}
	return makeDevices(filepath.Join(root, "dev"), request.KVM)
}

// makeDevices makes the devices of a Pod, with /dev/net/tun and perhaps /dev/kvm of the device plugin.
func makeDevices(dev string, kvm bool) error {
	for _, dir := range []string{"pts", "shm", "net"} {
		if err := os.Mkdir(filepath.Join(dev, dir), 0o755); err != nil {
			return err
		}
	}
	devices := map[string][2]uint32{
		"null": {1, 3}, "zero": {1, 5}, "full": {1, 7}, "random": {1, 8}, "urandom": {1, 9}, "net/tun": {10, 200},
	}
	if kvm {
		devices["kvm"] = [2]uint32{10, 232}
	}
	for name, number := range devices {
		path := filepath.Join(dev, name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(number[0], number[1]))); err != nil {
			return fmt.Errorf("make /dev/%s: %w", name, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	if err := unix.Mount("devpts", filepath.Join(dev, "pts"), "devpts", unix.MS_NOSUID|unix.MS_NOEXEC,
		"newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return fmt.Errorf("mount /dev/pts: %w", err)
	}
	if err := unix.Mount("tmpfs", filepath.Join(dev, "shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV,
		"mode=1777"); err != nil {
		return fmt.Errorf("mount /dev/shm: %w", err)
	}
	if err := os.Symlink("pts/ptmx", filepath.Join(dev, "ptmx")); err != nil {
		return err
	}
	return os.Symlink("/proc/self/fd", filepath.Join(dev, "fd"))
}

// linkUp sets lo up in the new network namespace.
func linkUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(uint16(net.FlagUp))
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}
