// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pods

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

func TestCgroupInPod(t *testing.T) {
	const uid = "0b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11"
	for _, tc := range []struct {
		name, file string
		want       bool
	}{
		{"v2 with cgroupfs", "0::/kubepods/burstable/pod" + uid + "/8f0c\n", true},
		{"v2 from a cgroup namespace", "0::/../../besteffort/pod" + uid + "/8f0c\n", true},
		{"v2 with systemd", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b7a6b0e_6d53_4f0b_9a41_3a1d8f1f7a11.slice/cri-containerd-8f.scope\n", true},
		{"v1 below another root", "12:pids:/node2/kubepods/pod" + uid + "/8f0c\n1:name=systemd:/x\n", true},
		{"another Pod", "0::/kubepods/burstable/pod1b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11/8f0c\n", false},
		{"a name that only contains it", "0::/kubepods/pod" + uid + "x/8f\n", false},
		{"a slice of the Pod's own making", "0::/user.slice/evil-pod0b7a6b0e_6d53_4f0b_9a41_3a1d8f1f7a11.slice\n", false},
		{"no Pod", "0::/system.slice/ssh.service\n", false},
		{"nothing", "", false},
		{"nonsense", "pod" + uid, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := checkCgroup(procDir(t, tc.file), uid); (err == nil) != tc.want {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

// procDir returns a directory like the one in /proc of a process in a cgroup.
func procDir(t *testing.T, cgroup string) *os.File {
	t.Helper()
	dir := t.TempDir()
	if cgroup != "" {
		if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte(cgroup), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := openDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestProcessMustBelongToThePod(t *testing.T) {
	const other = "1b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11"
	for _, tc := range []struct{ name, cgroup, refusal string }{
		{"its own Pod", "0::/kubepods/burstable/pod" + podUID + "/8f0c\n", ""},
		{"another Pod", "0::/kubepods/burstable/pod" + other + "/8f0c\n", "does not belong to the Pod"},
		{"the node", "0::/system.slice/libvirtd.service\n", "does not belong to the Pod"},
		{"a process that has ended", "", "no such file"},
		{"a file without end", strings.Repeat("0::/x\n", podprocess.MaxFile/6+1) + "0::/kubepods/pod" + string(podUID) + "\n",
			"does not belong to the Pod"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := checkCgroup(procDir(t, tc.cgroup), podUID)
			if (err == nil) != (tc.refusal == "") || (err != nil && !strings.Contains(err.Error(), tc.refusal)) {
				t.Errorf("got %v, want one that contains %q", err, tc.refusal)
			}
		})
	}
}

// servedEnv and servedFD make this test's binary the process behind a socket: it listens on the descriptor, closes its
// output to report that, and waits for the end of its input.
const (
	servedEnv = "VIREO_TEST_LISTEN"
	servedFD  = 3
)

func TestMain(m *testing.M) {
	if os.Getenv(servedEnv) == "" {
		os.Exit(m.Run())
	}
	if err := unix.Listen(servedFD, 1); err != nil {
		_, _ = os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	_ = os.Stdout.Close()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// listenAs makes a process of another user listen on a socket. The kernel reports the credentials of the process that
// called listen.
func listenAs(t *testing.T, path string, uid uint32) {
	t.Helper()
	short := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: short}), os.Rename(short, path))
	}
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(fd), "socket")
	defer func() { _ = socket.Close() }()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{servedEnv + "=1"}
	cmd.ExtraFiles = []*os.File{socket}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Fatal(err)
	}
}

// patience is the timeout for what must end by itself.
const patience = 20 * time.Second

const podUID = "0b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11"

// newPods returns Pods, with the sockets volume of one Pod.
func newPods(t *testing.T, check CheckPeer) (p *Pods, sockets string) {
	t.Helper()
	p = New(t.TempDir(), check)
	t.Cleanup(p.Close)
	sockets = filepath.Join(p.dir, podUID, socketsDir)
	if err := os.MkdirAll(sockets, 0o755); err != nil {
		t.Fatal(err)
	}
	return p, sockets
}

// listen accepts connections on a socket and keeps them open.
func listen(t *testing.T, path string) {
	t.Helper()
	short := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", short)
	if err == nil {
		err = os.Rename(short, path)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			if _, err := listener.Accept(); err != nil {
				return
			}
		}
	}()
}

func self(*net.UnixConn, string) (*os.File, error) { return os.Open("/proc/self") }

func TestSocketOfAnotherProcess(t *testing.T) {
	p, sockets := newPods(t, nil)
	listen(t, filepath.Join(sockets, layout.LibvirtSocketName))
	if os.Getuid() == layout.QEMUUser {
		t.Skip("this user is QEMU's")
	}
	if _, _, err := p.Connect(podUID, layout.LibvirtSocketName); err == nil ||
		!strings.Contains(err.Error(), "is served by user") {
		t.Errorf("got %v", err)
	}
}

func TestSocketOfQEMUUserOutsidePod(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to run a process as QEMU's user")
	}
	p, sockets := newPods(t, nil)
	listenAs(t, filepath.Join(sockets, layout.LibvirtSocketName), layout.QEMUUser)
	_, _, err := p.Connect(podUID, layout.LibvirtSocketName)
	if brokerapi.CodeOf(err) != brokerapi.CodeRefused || !strings.Contains(err.Error(), "does not belong to the Pod") {
		t.Errorf("got %v", err)
	}
}

// What a client may send in the place of a UID or of a socket's name.
func TestForgedNames(t *testing.T) {
	p, sockets := newPods(t, self)
	listen(t, filepath.Join(sockets, layout.LibvirtSocketName))
	listen(t, filepath.Join(sockets, "other"))
	for _, pod := range []string{"", ".", "..", "../" + podUID, podUID + "/", "/", podUID + "\x00", "-",
		strings.Repeat("a", 64), "a_b"} {
		if conn, _, err := p.Connect(pod, layout.LibvirtSocketName); err == nil {
			_ = conn.Close()
			t.Errorf("Pod %q was accepted", pod)
		}
		if file, err := p.Libvirtd(pod); err == nil {
			_ = file.Close()
			t.Errorf("the process of Pod %q was found", pod)
		}
		if _, err := p.Created(pod); err == nil {
			t.Errorf("Pod %q was created", pod)
		}
	}
	for _, name := range []string{"", "other", "..", "../sockets/" + layout.LibvirtSocketName,
		layout.LibvirtSocketName + "\x00"} {
		if conn, _, err := p.Connect(podUID, name); err == nil {
			_ = conn.Close()
			t.Errorf("socket %q was accepted", name)
		}
		if err := p.Wait(t.Context(), podUID, name); err == nil {
			t.Errorf("socket %q was waited for", name)
		}
	}
}

func TestLibvirtdIsRemembered(t *testing.T) {
	checks := 0
	p, sockets := newPods(t, func(conn *net.UnixConn, pod string) (*os.File, error) {
		checks++
		return self(conn, pod)
	})
	if _, err := p.Libvirtd(podUID); brokerapi.CodeOf(err) != brokerapi.CodeNoLauncher {
		t.Errorf("without a socket: %v", err)
	}
	listen(t, filepath.Join(sockets, layout.LibvirtSocketName))
	for range 3 {
		dir, err := p.Libvirtd(podUID)
		if err != nil {
			t.Fatal(err)
		}
		if err := dir.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if checks != 1 {
		t.Errorf("%d checks", checks)
	}
	// A process that has ended is forgotten.
	gone := exec.Command("true")
	if err := gone.Start(); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(fmt.Sprintf("/proc/%d", gone.Process.Pid))
	if err := errors.Join(err, gone.Wait()); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.libvirtds[podUID] = dir
	p.mu.Unlock()
	found, err := p.Libvirtd(podUID)
	if err != nil || checks != 2 {
		t.Fatalf("%d checks (%v)", checks, err)
	}
	_ = found.Close()
}

// Whether a process still runs is found out without its root directory, which may be on storage that hangs.
func TestRunningWithoutTheRootDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/nothing/responds/here", filepath.Join(dir, "root")); err != nil {
		t.Fatal(err)
	}
	process, err := openDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = process.Close() }()
	if !runs(process) {
		t.Error("its root directory was opened")
	}
}

// A process is in the container compute if its termination log is one of that container.
func TestContainerOfAProcess(t *testing.T) {
	p, _ := newPods(t, nil)
	logs := filepath.Join(p.dir, podUID, "containers", layout.ComputeContainer)
	other := filepath.Join(p.dir, podUID, "containers", "debugger")
	root, process := t.TempDir(), t.TempDir()
	for _, err := range []error{
		os.MkdirAll(logs, 0o755), os.MkdirAll(other, 0o755), os.MkdirAll(filepath.Join(root, "dev"), 0o755),
		os.WriteFile(filepath.Join(logs, "8f0c"), nil, 0o666), os.WriteFile(filepath.Join(other, "8f0d"), nil, 0o666),
		os.Symlink(root, filepath.Join(process, "root")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	dir, err := openDir(process)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	log := filepath.Join(root, terminationLog)
	for name, c := range map[string]struct {
		make func() error
		want bool
	}{
		"the container's":  {func() error { return os.Link(filepath.Join(logs, "8f0c"), log) }, true},
		"another's":        {func() error { return os.Link(filepath.Join(other, "8f0d"), log) }, false},
		"its own":          {func() error { return os.WriteFile(log, nil, 0o666) }, false},
		"a link":           {func() error { return os.Symlink(filepath.Join(logs, "8f0c"), log) }, false},
		"none":             {func() error { return nil }, false},
		"a directory":      {func() error { return os.Mkdir(log, 0o700) }, false},
		"of the same name": {func() error { return os.WriteFile(log, []byte("8f0c"), 0o666) }, false},
	} {
		if err := errors.Join(os.RemoveAll(log), c.make()); err != nil {
			t.Fatal(err)
		}
		if err := p.checkContainer(dir, podUID); (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := p.checkContainer(dir, "1b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11"); err == nil {
		t.Error("another Pod's")
	}
}
