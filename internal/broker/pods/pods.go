// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package pods finds launcher Pods on the node by their UID alone, and checks that they are launchers. It relies on the
// kubelet's directories and on the kernel, and on nothing that the client of the broker says.
//
// A launcher Pod is one whose sockets volume has a socket of libvirtd that is served by a process which
//   - runs as QEMU's user,
//   - is in the Pod's cgroup, of which the kubelet is the only writer,
//   - and has, as its termination log, a file that the kubelet created for the Pod's container compute. The user who
//     adds a container for debugging controls everything in that one, including its root directory.
//
// This does not prove that virt-controller created the Pod: that is recorded in the API server only, and every tenant
// can create a Pod of this shape. What the broker does for a Pod must therefore affect that Pod only, also if a tenant
// controls it.
package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// CheckPeer verifies that the process behind a connection belongs to a Pod, and returns its directory in /proc.
type CheckPeer func(conn *net.UnixConn, pod string) (*os.File, error)

// Pods finds the launcher Pods of the node.
type Pods struct {
	dir   string
	check CheckPeer
	// links is the instance of inotify for links to devices, and events are what it reports.
	links  int
	events *os.File

	mu sync.Mutex
	// libvirtds are the directories in /proc of the libvirtds that were found. They spare libvirtd a connection for
	// each request.
	libvirtds map[string]*os.File
}

// New returns Pods for the kubelet's directory of Pods. A check replaces the one that the documentation of the package
// describes; tests need that.
func New(dir string, check CheckPeer) *Pods {
	p := &Pods{dir: dir, check: check, links: -1, libvirtds: map[string]*os.File{}}
	if p.check == nil {
		p.check = p.checkPeer
	}
	return p
}

// Close forgets all processes, and stops watching devices.
func (p *Pods) Close() {
	_ = p.events.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(func(string, *os.File) bool { return true })
}

// Dir returns the kubelet's directory of Pods.
func (p *Pods) Dir() string { return p.dir }

// Wait returns when one of the sockets of a Pod exists. The kubelet may not have created the Pod's directories yet.
func (p *Pods) Wait(ctx context.Context, pod, name string) error {
	return Until(ctx, func() error {
		socket, err := p.openSocket(pod, name)
		if err != nil {
			return err
		}
		return socket.Close()
	})
}

// Until returns when a check of a Pod finds what it looks for, or fails otherwise.
func Until(ctx context.Context, check func() error) error {
	for start := time.Now(); ; {
		if err := check(); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(max(time.Since(start)/checksPerPeriod, minInterval), maxInterval)):
		}
	}
}

// The interval between checks grows with the time that the Pod takes, of which it delays the guest by half a percent at
// most. A check of a socket takes a few microseconds. Notifications of the kernel would need an instance of inotify, of
// which all of a node's processes of root share 128, and the watched directories do not exist before the Pod starts.
const (
	minInterval     = 5 * time.Millisecond
	maxInterval     = time.Second
	checksPerPeriod = 200
)

// Connect connects to one of the sockets of a launcher Pod, after verifying that a process of the Pod serves it, and
// returns the directory of that process too.
func (p *Pods) Connect(pod, name string) (*net.UnixConn, *os.File, error) {
	socket, err := p.openSocket(pod, name)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = socket.Close() }()
	// It is connected to by its inode.
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: podprocess.Reopen(socket)})
	if err != nil {
		return nil, nil, fmt.Errorf("connect to %s: %w", name, err)
	}
	process, err := p.check(conn, pod)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, process, nil
}

// Libvirtd returns the directory in /proc of a launcher Pod's libvirtd. The caller closes it. Unlike a PID it never
// refers to another process: after the process has ended, it is of no use.
func (p *Pods) Libvirtd(pod string) (*os.File, error) {
	if found := p.known(pod); found != nil {
		return found, nil
	}
	conn, process, err := p.Connect(pod, layout.LibvirtSocketName)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, &brokerapi.Error{
			Code:    brokerapi.CodeNoLauncher,
			Message: fmt.Sprintf("no libvirtd runs in launcher Pod %s on this node: %v", pod, err),
		}
	}
	if err != nil {
		return nil, fmt.Errorf("find the processes of launcher Pod %s: %w", pod, err)
	}
	_ = conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(func(known string, dir *os.File) bool { return known == pod || !runs(dir) })
	p.libvirtds[pod] = process
	return openDir(podprocess.Reopen(process))
}

// known returns the libvirtd that was found earlier, if it still runs, or nil.
func (p *Pods) known(pod string) *os.File {
	p.mu.Lock()
	defer p.mu.Unlock()
	if dir := p.libvirtds[pod]; dir != nil && runs(dir) {
		copied, _ := openDir(podprocess.Reopen(dir))
		return copied
	}
	return nil
}

// forget forgets processes. There are never more than launcher Pods on the node, because those that have ended are
// forgotten.
func (p *Pods) forget(which func(pod string, dir *os.File) bool) {
	for pod, dir := range p.libvirtds {
		if which(pod, dir) {
			_ = dir.Close()
			delete(p.libvirtds, pod)
		}
	}
}

// runs reports whether a process has a root directory, which it loses when it ends. It only reads the kernel's name of
// that directory: opening it could block, as a process may have changed its root to storage that hangs, and all Pods
// wait for mu.
func runs(process *os.File) bool {
	_, err := unix.Readlinkat(int(process.Fd()), "root", make([]byte, 1))
	return err == nil
}

// Created returns when the kubelet created a Pod's directory, or zero if its file system does not record that.
func (p *Pods) Created(pod string) (time.Time, error) {
	if err := CheckUID(pod); err != nil {
		return time.Time{}, err
	}
	return podprocess.CreationTime(filepath.Join(p.dir, pod))
}

// Name returns the namespace and the name of a Pod. The kubelet's pod resources API has no UIDs, and the kubelet has
// the three together only in the name of the directory with the Pod's logs. Source: kubernetes
// pkg/kubelet/kuberuntime/helpers.go (BuildPodLogsDirectory).
func Name(logs, pod string) (namespace, name string, err error) {
	entries, err := os.ReadDir(logs)
	if err != nil {
		return "", "", fmt.Errorf("find the name of Pod %s: %w", pod, err)
	}
	for _, entry := range entries {
		// No name or namespace contains an underscore.
		if parts := strings.Split(entry.Name(), "_"); len(parts) == 3 && parts[2] == pod {
			return parts[0], parts[1], nil
		}
	}
	return "", "", fmt.Errorf("the kubelet has no directory for the logs of Pod %s in %s (see --pod-logs-dir): %w",
		pod, logs, fs.ErrNotExist)
}

// uid matches the UID of a Pod, which names its directory. The API server generates UUIDs.
var uid = regexp.MustCompile(`^[0-9A-Za-z]([0-9A-Za-z-]{0,62})$`)

// CheckUID returns an error if a text cannot be the UID of a Pod.
func CheckUID(text string) error {
	if !uid.MatchString(text) {
		return brokerapi.Invalid("%.64q is no Pod UID", text)
	}
	return nil
}

// socketsDir is the path of a Pod's sockets volume below the kubelet's directory of the Pod.
// Source: kubernetes pkg/kubelet/config/defaults.go and pkg/volume/emptydir.
const socketsDir = EmptyDirs + layout.SocketsVolume

// checkSocketName returns an error unless a name is that of a socket to which virt-handler connects.
func checkSocketName(name string) error {
	if name == layout.LibvirtSocketName || layout.IsBackupSocketName(name) {
		return nil
	}
	for port := range layout.USBPorts {
		if name == layout.USBSocketName(port) {
			return nil
		}
	}
	return brokerapi.Refused("%.64q is no socket of a launcher Pod", name)
}

// openDir opens a directory that the broker trusts, for example the kubelet's.
func openDir(path string) (*os.File, error) {
	return os.OpenFile(filepath.Clean(path), unix.O_PATH|unix.O_DIRECTORY, 0)
}

// open opens a file in the kubelet's directory of a Pod.
func (p *Pods) open(pod, name string, flags int) (*os.File, error) {
	if err := CheckUID(pod); err != nil {
		return nil, err
	}
	pods, err := openDir(p.dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = pods.Close() }()
	return podprocess.OpenAt(pods, filepath.Join(pod, name), unix.O_NOFOLLOW|flags, podprocess.Beneath)
}

// openSocket opens the inode of one of the sockets in a Pod's sockets volume.
func (p *Pods) openSocket(pod, name string) (*os.File, error) {
	if err := checkSocketName(name); err != nil {
		return nil, err
	}
	socket, err := p.open(pod, filepath.Join(socketsDir, name), unix.O_PATH)
	if err != nil {
		return nil, err
	}
	info, err := socket.Stat()
	if err == nil && info.Mode().Type() != os.ModeSocket {
		err = brokerapi.Refused("%s of Pod %s is no socket but %s", name, pod, info.Mode())
	}
	if err != nil {
		_ = socket.Close()
		return nil, err
	}
	return socket, nil
}
