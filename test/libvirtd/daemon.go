// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package libvirtd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/onsi/gomega/gbytes"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// RootfsEnv names the environment variable with the path of the launcher image's root file system.
const RootfsEnv = "VIREO_LAUNCHER_ROOTFS"

// KVMEnv names the environment variable that, if it is not empty, gives /dev/kvm to each Daemon.
const KVMEnv = "VIREO_LIBVIRTD_KVM"

// startTimeout bounds the wait for libvirtd's socket. The first response takes about a second on an idle machine.
const startTimeout = 60 * time.Second

// TB is what Start needs of a test: *testing.T and GinkgoT() both have it.
type TB interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// Daemon is a running libvirtd and the directories that it shares with the test.
type Daemon struct {
	dir     string
	cmd     *exec.Cmd
	lifeW   *os.File
	log     *gbytes.Buffer
	console *gbytes.Buffer
	fifo    *os.File
	done    chan struct{}
	stop    sync.Once
}

// Start runs libvirtd from rootfs and returns when its socket accepts connections. libvirtd ends with the test.
func Start(t TB, rootfs string) *Daemon {
	t.Helper()
	d, err := start(rootfs)
	if d != nil {
		t.Cleanup(func() {
			d.Stop()
			if t.Failed() {
				t.Logf("libvirtd's log:\n%s", d.Log())
			}
			if err := os.RemoveAll(d.dir); err != nil {
				t.Logf("remove libvirtd's directory: %v", err)
			}
		})
	}
	if err != nil {
		t.Fatalf("start libvirtd from %q: %v", rootfs, err)
	}
	return d
}

func start(rootfs string) (*Daemon, error) {
	if rootfs == "" {
		return nil, fmt.Errorf("no launcher root file system: set %s to a directory with the launcher image's files",
			RootfsEnv)
	}
	if _, err := os.Stat(filepath.Join(rootfs, "usr/sbin/libvirtd")); err != nil {
		return nil, fmt.Errorf("not a launcher root file system: %w", err)
	}
	// A short path: that of the socket below it must fit into the 108 bytes of a sockaddr_un.
	dir, err := os.MkdirTemp("", "vireo-libvirtd-")
	if err != nil {
		return nil, err
	}
	d := &Daemon{dir: dir, log: gbytes.NewBuffer(), console: gbytes.NewBuffer(), done: make(chan struct{})}
	if err := d.layout(rootfs); err != nil {
		return d, fmt.Errorf("make the Pod's directories: %w", err)
	}
	if err := d.run(rootfs); err != nil {
		return d, err
	}
	return d, d.waitForSocket()
}

// layout creates what the kubelet and virt-launcher create in a Pod, below one directory that becomes /run there.
func (d *Daemon) layout(rootfs string) error {
	if err := os.Chmod(d.dir, 0o755); err != nil {
		return err
	}
	for _, dir := range []string{
		launcherpod.SocketsDir, launcherpod.RuntimeDir, launcherpod.EphemeralDisksDir, launcherpod.TrackedDisksDir,
		launcherpod.HotplugDisksDir, launcherpod.ContainerDisksDir,
		launcherpod.KernelBootDir, launcherpod.DisksDir, launcherpod.SecretsDir,
		launcherpod.RuntimeDir + "/home", launcherpod.RuntimeDir + "/run", launcherpod.RuntimeDir + "/cache",
		launcherpod.RuntimeDir + "/tmp", launcherpod.RuntimeDir + "/config/libvirt", launcherpod.TPMAuthorityDir,
		launcherpod.ConsoleLockDir, launcherpod.MigrationTLSDir,
		launcherpod.StateDir + "/" + launcherpod.NVRAMState, launcherpod.StateDir + "/" + launcherpod.TPMState,
	} {
		if err := os.MkdirAll(d.Host(dir), 0o755); err != nil {
			return err
		}
	}
	for from, to := range map[string]string{"libvirt/qemu.conf": "libvirt/qemu.conf",
		"swtpm/swtpm_setup.conf": "swtpm_setup.conf"} {
		config, err := os.ReadFile(filepath.Join(rootfs, "usr/share/vireo", from))
		if err != nil {
			return err
		}
		// As virt-launcher does for a claim that no other Pod uses at the same time.
		config = bytes.Replace(config, []byte(`"`+launcherpod.StateDir+`", `), nil, 1)
		if err := os.WriteFile(d.Host(launcherpod.RuntimeDir+"/config/"+to), config, 0o644); err != nil {
			return err
		}
	}
	err := syscall.Mkfifo(d.Host(launcherpod.ConsoleFIFO), 0o600)
	if err != nil {
		return err
	}
	// Open for reading and writing, as virt-launcher does: QEMU finds a reader, and the reader never reads the end of the
	// file.
	if d.fifo, err = os.OpenFile(d.Host(launcherpod.ConsoleFIFO), os.O_RDWR, 0); err != nil {
		return err
	}
	go func() { _, _ = io.Copy(d.console, d.fifo) }()
	return filepath.Walk(d.dir, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, launcherpod.QEMUUser, launcherpod.QEMUUser)
	})
}

func (d *Daemon) run(rootfs string) error {
	request, err := json.Marshal(initRequest{Rootfs: rootfs, Run: d.dir, KVM: os.Getenv(KVMEnv) != ""})
	if err != nil {
		return err
	}
	lifeR, lifeW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = lifeR.Close() }()
	d.lifeW = lifeW
	d.cmd = exec.Command("/proc/self/exe")
	d.cmd.Args = []string{initName, string(request)}
	d.cmd.Env = []string{}
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	d.cmd.ExtraFiles = []*os.File{lifeR}
	d.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET |
			syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
	}
	if err := d.cmd.Start(); err != nil {
		return fmt.Errorf("start libvirtd's namespaces (needs root): %w", err)
	}
	go func() {
		_ = d.cmd.Wait()
		close(d.done)
	}()
	return nil
}

func (d *Daemon) waitForSocket() error {
	deadline := time.After(startTimeout)
	for {
		conn, err := net.Dial("unix", d.Socket())
		if err == nil {
			return conn.Close()
		}
		select {
		case <-d.done:
			return fmt.Errorf("libvirtd ended before it listened:\n%s", d.Log())
		case <-deadline:
			return fmt.Errorf("libvirtd does not listen after %s: %w\n%s", startTimeout, err, d.Log())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Socket is the path of libvirtd's socket outside of its namespaces.
func (d *Daemon) Socket() string { return d.Host(launcherpod.LibvirtSocket) }

// URI is what libvirt's client connects to. The process needs LIBVIRT_AUTOSTART=0: otherwise the client
// starts a daemon of its own if the socket is closed.
func (d *Daemon) URI() string { return "qemu:///session?socket=" + d.Socket() }

// Host turns a path of the Pod into one for the test: everything below /var/run is in the daemon's directory, and the
// rest (such as the devices) is reached through the root of the Pod's PID 1.
func (d *Daemon) Host(podPath string) string {
	if rest, ok := strings.CutPrefix(podPath, "/var/run/"); ok {
		return filepath.Join(d.dir, rest)
	}
	return filepath.Join("/proc", strconv.Itoa(d.PID()), "root", podPath)
}

// PID is the process id of the Pod's PID 1, which has the Pod's namespaces.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// NetNS is the path of the Pod's network namespace, which has only lo.
func (d *Daemon) NetNS() string { return fmt.Sprintf("/proc/%d/ns/net", d.PID()) }

// Log is what libvirtd wrote until now.
func (d *Daemon) Log() string { return string(d.log.Contents()) }

// Console is what guests wrote to their logged serial consoles until now.
func (d *Daemon) Console() string { return string(d.console.Contents()) }

// Done is closed when libvirtd has ended.
func (d *Daemon) Done() <-chan struct{} { return d.done }

// Stop ends libvirtd and all of its guests. It can be called more than once.
func (d *Daemon) Stop() {
	d.stop.Do(func() {
		if d.cmd != nil && d.cmd.Process != nil {
			// When PID 1 ends, the kernel kills all other processes of its namespace.
			if err := d.cmd.Process.Kill(); err == nil || errors.Is(err, os.ErrProcessDone) {
				<-d.done
			}
		}
		if d.lifeW != nil {
			_ = d.lifeW.Close()
		}
		if d.fifo != nil {
			_ = d.fifo.Close()
		}
	})
}
