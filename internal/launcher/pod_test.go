// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega/gbytes"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// The tests with a real libvirtd run the launcher as PID 1 of a Pod that they create: namespaces, the launcher image's
// files as a read-only root, UID 107. The test binary also sets up the Pod from inside.
const (
	// rootEnv names the directory with the launcher image's unpacked files.
	rootEnv   = "VIREO_LAUNCHER_ROOTFS"
	insideEnv = "VIREO_TEST_POD_INSIDE"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(insideEnv); dir != "" {
		fmt.Fprintln(os.Stderr, "cannot make the Pod:", becomeLauncher(dir, os.Args[1:]))
		os.Exit(99)
	}
	code := m.Run()
	_ = os.RemoveAll(buildDir)
	os.Exit(code)
}

// buildDir has the launcher's binary, which is built when the first test needs it.
var buildDir string

// pod is a launcher in its own namespaces.
type pod struct {
	t      *testing.T
	dir    string
	cmd    *exec.Cmd
	stdout *gbytes.Buffer
	stderr *gbytes.Buffer
	exited chan struct{}
}

var buildOnce = sync.OnceValues(func() (string, error) {
	var err error
	if buildDir, err = os.MkdirTemp("", "vireo-launcher-build"); err != nil {
		return "", err
	}
	binary := filepath.Join(buildDir, "virt-launcher")
	build := exec.Command("go", "build", "-o", binary, "github.com/vireo-project/vireo/cmd/virt-launcher")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build virt-launcher: %w: %s", err, out)
	}
	return binary, nil
})

// startPod starts a launcher for default/test.
func startPod(t *testing.T, args ...string) *pod {
	t.Helper()
	if os.Getuid() != 0 || os.Getenv(rootEnv) == "" {
		t.Skipf("needs root, and %s with the launcher image's unpacked files", rootEnv)
	}
	binary, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	// A short name, because a socket's path has at most 108 bytes.
	dir, err := os.MkdirTemp("", "vp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p := &pod{t: t, dir: dir, stdout: gbytes.NewBuffer(), stderr: gbytes.NewBuffer(), exited: make(chan struct{})}
	p.copyBinary(binary)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(self, append([]string{
		"--namespace", "default", "--name", "test",
		"--termination-log", launcherpod.RuntimeDir + "/outcome", "-v", "1",
	}, args...)...)
	p.cmd.Env = append(os.Environ(), insideEnv+"="+dir)
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  unix.SIGKILL,
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
		if t.Failed() {
			t.Logf("the launcher's log:\n%s", p.stderr.Contents())
		}
	})
	return p
}

func (p *pod) copyBinary(binary string) {
	p.t.Helper()
	content, err := os.ReadFile(binary)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "virt-launcher"), content, 0o755); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pod) socket() string { return filepath.Join(p.dir, "sockets", launcherpod.LibvirtSocketName) }

func (p *pod) runtime(name string) string { return filepath.Join(p.dir, "runtime", name) }

// consoleLog is the pipe to the container with the guest's console.
func (p *pod) consoleLog() string {
	return filepath.Join(p.dir, "console", filepath.Base(launcherpod.ConsoleLogFIFO))
}

func (p *pod) terminate() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
}

// expectExit waits for the launcher's exit and checks its exit code and outcome.
func (p *pod) expectExit(code int, reason string) launcherpod.Outcome {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(time.Minute):
		p.t.Fatal("the launcher does not exit")
	}
	content, err := os.ReadFile(p.runtime("outcome"))
	if err != nil {
		p.t.Fatalf("no outcome: %v", err)
	}
	var outcome launcherpod.Outcome
	if err := json.Unmarshal(content, &outcome); err != nil {
		p.t.Fatalf("the outcome %q is no JSON: %v", content, err)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code || outcome.Reason != reason {
		p.t.Errorf("exit code %d and outcome %+v, want %d and %s", got, outcome, code, reason)
	}
	return outcome
}

// eventually waits for a condition; the time only bounds a test that fails.
func (p *pod) eventually(what string, condition func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if condition() {
			return
		}
		select {
		case <-p.exited:
			p.t.Fatalf("the launcher exited while waiting for: %s", what)
		default:
		}
	}
	p.t.Fatalf("timeout: %s", what)
}

// child returns the pid, in the test's namespace, of the launcher's child with a name; 0 if there is none.
func (p *pod) child(name string) int {
	statuses, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, file := range statuses {
		fields := statusFields(file)
		if fields["PPid"] == strconv.Itoa(p.cmd.Process.Pid) && strings.HasPrefix(fields["Name"], name) &&
			fields["State"] != "Z (zombie)" {
			pid, _ := strconv.Atoi(fields["Pid"])
			return pid
		}
	}
	return 0
}

func statusFields(file string) map[string]string {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields
}

// becomeLauncher runs as PID 1 in the new namespaces: it creates what the kubelet would create, and executes the
// launcher.
func becomeLauncher(dir string, args []string) error {
	root := filepath.Join(dir, "root")
	steps := []func() error{
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return os.Mkdir(root, 0o755) },
		func() error { return unix.Mount(os.Getenv(rootEnv), root, "", unix.MS_BIND, "") },
		func() error { return mountDev(root) },
		func() error { return unix.Mount("proc", filepath.Join(root, "proc"), "proc", 0, "") },
		func() error { return unix.Mount("sysfs", filepath.Join(root, "sys"), "sysfs", unix.MS_RDONLY, "") },
		func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0) },
		func() error { return mountVolumes(dir, root) },
		func() error { return unix.Chroot(root) },
		func() error { return os.Chdir("/") },
		func() error { return syscall.Setgroups(nil) },
		func() error { return syscall.Setgid(launcherpod.QEMUUser) },
		func() error { return syscall.Setuid(launcherpod.QEMUUser) },
		func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return unix.Exec("/run/test/virt-launcher", append([]string{"virt-launcher"}, args...),
		[]string{"PATH=/usr/sbin:/usr/bin"})
}

func mountDev(root string) error {
	dev := filepath.Join(root, "dev")
	if err := unix.Mount("tmpfs", dev, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "random", "urandom", "full"} {
		if err := os.WriteFile(filepath.Join(dev, name), nil, 0o666); err != nil {
			return err
		}
		if err := unix.Mount("/dev/"+name, filepath.Join(dev, name), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for name, options := range map[string]string{"pts": "newinstance,ptmxmode=0666,mode=0620", "shm": "mode=1777"} {
		if err := os.Mkdir(filepath.Join(dev, name), 0o755); err != nil {
			return err
		}
		kind := map[string]string{"pts": "devpts", "shm": "tmpfs"}[name]
		if err := unix.Mount(kind, filepath.Join(dev, name), kind, 0, options); err != nil {
			return err
		}
	}
	return os.Symlink("pts/ptmx", filepath.Join(dev, "ptmx"))
}

// mountVolumes bind-mounts directories of the host below /run, and a resolv.conf in /etc.
func mountVolumes(dir, root string) error {
	run := filepath.Join(root, "run")
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for source, target := range map[string]string{
		"sockets": "kubevirt/sockets", "runtime": "libvirt", "disks": "kubevirt-ephemeral-disks", "console": "kubevirt-private/console-log", "": "test",
	} {
		from, to := filepath.Join(dir, source), filepath.Join(run, target)
		if err := os.MkdirAll(from, 0o755); err != nil {
			return err
		}
		if source != "" {
			if err := os.Chown(from, launcherpod.QEMUUser, launcherpod.QEMUUser); err != nil {
				return err
			}
		}
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	etc := filepath.Join(root, "etc")
	copied := filepath.Join(dir, "etc")
	if err := os.CopyFS(copied, os.DirFS(etc)); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(copied, "resolv.conf"), []byte("nameserver 10.96.0.10\nsearch a.svc\n"),
		0o644); err != nil {
		return err
	}
	if err := unix.Mount(copied, etc, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}
