// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

func TestCgroupInPod(t *testing.T) {
	const uid = "0b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11"
	const id = "8f0c8f0c8f0c"
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
			got, err := cgroupInPod(strings.NewReader(tc.file), uid, "")
			if err != nil || got != tc.want {
				t.Errorf("got %v (%v), want %v", got, err, tc.want)
			}
		})
	}
	const slice = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b7a6b0e_6d53_4f0b_9a41_3a1d8f1f7a11.slice/"
	for file, want := range map[string]bool{
		"0::/kubepods/burstable/pod" + uid + "/" + id + "\n":                  true,
		"0::/../../besteffort/pod" + uid + "/" + id + "\n":                    true,
		slice + "cri-containerd-" + id + ".scope\n":                           true,
		slice + "crio-" + id + ".scope/container\n":                           true,
		slice + "docker-" + id + ".scope\n":                                   true,
		slice + "cri-containerd-another.scope\n":                              false,
		"0::/kubepods/burstable/pod" + uid + "/another\n":                     false,
		"0::/kubepods/burstable/pod" + uid + "\n":                             false,
		"0::/" + id + "/kubepods/burstable/pod" + uid + "/another\n":          false,
		"0::/kubepods/burstable/pod1b7a6b0e-6d53-4f0b-9a41-3a1d/" + id + "\n": false,
	} {
		if got, err := cgroupInPod(strings.NewReader(file), uid, id); err != nil || got != want {
			t.Errorf("container %s in %s: got %v (%v), want %v", id, file, got, err, want)
		}
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
		{"its own Pod", "0::/kubepods/burstable/pod" + string(podUID) + "/8f0c\n", ""},
		{"another Pod", "0::/kubepods/burstable/pod" + other + "/8f0c\n", "does not belong to the Pod"},
		{"the node", "0::/system.slice/libvirtd.service\n", "does not belong to the Pod"},
		{"a process that has ended", "", "no such file"},
		{"a file without end", strings.Repeat("0::/x\n", maxCgroupFile/6+1) + "0::/kubepods/pod" + string(podUID) + "\n",
			"does not belong to the Pod"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := checkCgroup(procDir(t, tc.cgroup), podUID, "")
			if (err == nil) != (tc.refusal == "") || (err != nil && !strings.Contains(err.Error(), tc.refusal)) {
				t.Errorf("got %v, want one that contains %q", err, tc.refusal)
			}
		})
	}
}

// servedEnv and servedFD make this test's binary the process behind a socket: it listens on the descriptor, closes its output to
// report that, and waits for the end of its input.
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

// listenAs makes a process of another user listen on a socket. The kernel reports the credentials of the process that called
// listen.
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

func TestSocketOfQEMUUserOutsidePod(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to run a process as QEMU's user")
	}
	n := newNode(t)
	n.options.CheckPeer = nil
	listenAs(t, n.socket(), launcherpod.QEMUUser)
	expectUnreachable(t, n.dial(t, patience), "does not belong to the Pod")
}

func TestUnknownContainerIsRetried(t *testing.T) {
	n := newNode(t)
	n.options.CheckPeer = nil
	n.options.Container = func(types.UID) (string, error) { return "", errors.New("the kubelet has not reported it") }
	listen(t, n.socket(), func(c net.Conn) { _, _ = io.ReadAll(c) })
	expectUnreachable(t, n.dial(t, patience), "the kubelet has not reported it")
}
