// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher/qemucache"
	"github.com/vireo-project/vireo/internal/launcher/reaper"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/libvirtwire"
)

const (
	// readyTimeout is how long libvirtd may take to start. It takes 0.1 s, or 1 s if it probes QEMU, and longer on a node on
	// which many VMs start.
	readyTimeout = 3 * time.Minute
	// dialInterval is the interval of attempts to connect while the socket exists and libvirtd does not listen yet: a few
	// milliseconds after which there is no event.
	dialInterval = 10 * time.Millisecond
)

// prepare creates the directories that libvirtd and QEMU write to, with those that only a guest needs (guestDirs), and installs libvirt's
// configuration.
func prepare(log logr.Logger, guestDirs ...string) error {
	qemuConf := filepath.Join(xdgConfig, "libvirt", "qemu.conf")
	dirs := []string{homeDir, xdgRuntime, xdgCache, tempDir, launcherpod.ConsoleLockDir, launcherpod.MigrationTLSDir, filepath.Dir(qemuConf)}
	for _, dir := range append(dirs, guestDirs...) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create libvirt's directories: %w", err)
		}
	}
	if err := os.Symlink(launcherpod.LibvirtSocket, launcherpod.VirtqemudSocket); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the link to libvirtd's socket: %w", err)
	}
	var own []string
	if os.Getenv(launcherpod.SharedStateEnv) != launcherpod.StateDir {
		own = append(own, launcherpod.StateDir)
	}
	if err := configureQEMU(qemuConfig, qemuConf, own...); err != nil {
		return fmt.Errorf("put libvirt's configuration of QEMU in place: %w", err)
	}
	if err := prepareState(launcherpod.StateDir, launcherpod.TPMAuthorityDir); err != nil {
		return err
	}
	if err := qemucache.Fill(xdgCache); err != nil {
		// libvirt then probes QEMU, which takes half a second.
		log.Info("Not using the image's QEMU capabilities", "reason", err.Error())
	}
	return nil
}

// daemon is libvirtd and the copying of its log.
type daemon struct {
	*reaper.Child
	// relayed is closed when the log is copied to its end.
	relayed <-chan struct{}
}

// startLibvirtd starts libvirtd in session mode, in which it needs no privileges.
func startLibvirtd(log logr.Logger, children *reaper.Reaper, filters string) (*daemon, error) {
	logging, err := logEnvironment(filters)
	if err != nil {
		log.Error(err, "libvirtd's log has its warnings and errors only")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = write.Close() }()
	child, err := children.Start([]string{libvirtdBinary, "--config", libvirtdConfig}, &os.ProcAttr{
		Dir: launcherpod.RuntimeDir,
		Env: append([]string{
			"PATH=/usr/sbin:/usr/bin", "HOME=" + homeDir, "TMPDIR=" + tempDir,
			"XDG_RUNTIME_DIR=" + xdgRuntime, "XDG_CONFIG_HOME=" + xdgConfig, "XDG_CACHE_HOME=" + xdgCache,
		}, logging...),
		Files: []*os.File{null, write, write},
	})
	if err != nil {
		_ = read.Close()
		return nil, err
	}
	relayed := make(chan struct{})
	go func() {
		defer close(relayed)
		defer func() { _ = read.Close() }()
		relayLog(os.Stderr, read, log.V(1).Enabled() || logging != nil)
	}()
	return &daemon{Child: child, relayed: relayed}, nil
}

// connect waits for libvirtd's socket and connects as soon as it listens.
func connect(ctx context.Context, socket string) (*libvirtwire.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	// If the kernel gives the user of all launchers of the node no further watch, the attempts to connect wait for the socket.
	if err := waitForFile(ctx, socket); err != nil && !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENOSPC) {
		return nil, err
	}
	for {
		client, err := libvirtwire.Dial(ctx, socket)
		if err == nil {
			return client, nil
		}
		if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("connect to libvirtd: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to libvirtd: %w", err)
		case <-time.After(dialInterval):
		}
	}
}

// waitForFile returns once a file exists. It starts the watch before it checks the file, so that it misses no creation.
func waitForFile(ctx context.Context, file string) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for %s: %w", file, err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(filepath.Dir(file)); err != nil {
		return fmt.Errorf("watch for %s: %w", file, err)
	}
	for {
		if _, err := os.Lstat(file); err == nil {
			return nil
		}
		select {
		case <-watcher.Events:
		case err := <-watcher.Errors:
			return fmt.Errorf("watch for %s: %w", file, err)
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", file, ctx.Err())
		}
	}
}

// qemuPID returns the process id that libvirt has recorded for a running domain; 0 if there is none.
func qemuPID(domain string) int {
	content, err := os.ReadFile(filepath.Join(xdgRuntime, "libvirt", "qemu", "run", domain+".pid")) //nolint:gosec // libvirt's file
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || pid <= 1 {
		return 0
	}
	return pid
}
