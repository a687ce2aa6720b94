// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// maxCgroupFile is the limit for /proc/<pid>/cgroup in bytes. It has about 15 lines with a path each.
const maxCgroupFile = 64 << 10

// checkPeer verifies that the process that listens behind conn runs as QEMU's user in the container of the Pod, or in any of its
// containers if container is empty, and returns a reference to it. For a connected socket the kernel reports the process that
// called listen.
func checkPeer(conn *net.UnixConn, pod types.UID, container string) (*hypervisor.Process, error) {
	cred, err := peerCredentials(conn)
	if err != nil {
		return nil, err
	}
	if cred.Uid != launcherpod.QEMUUser {
		return nil, fmt.Errorf("the socket of Pod %s is served by user %d, not %d", pod, cred.Uid, launcherpod.QEMUUser)
	}
	// From here on the process is identified by this descriptor, because its PID could be reused.
	dir, err := openDir(fmt.Sprintf("/proc/%d", cred.Pid))
	if err != nil {
		return nil, fmt.Errorf("find the process behind the socket of Pod %s (the agent needs hostPID): %w", pod, err)
	}
	if err := checkCgroup(dir, pod, container); err != nil {
		_ = dir.Close()
		return nil, err
	}
	return &hypervisor.Process{Dir: dir}, nil
}

func peerCredentials(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, credErr
}

func checkCgroup(process *os.File, pod types.UID, container string) error {
	fd, err := unix.Openat(int(process.Fd()), "cgroup", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "openat", Path: process.Name() + "/cgroup", Err: err}
	}
	f := os.NewFile(uintptr(fd), "cgroup")
	defer func() { _ = f.Close() }()
	in, err := cgroupInPod(io.LimitReader(f, maxCgroupFile), pod, container)
	if err != nil {
		return fmt.Errorf("read the cgroup of the process behind the socket of Pod %s: %w", pod, err)
	}
	if !in {
		return fmt.Errorf("the process behind the socket of Pod %s does not belong to the Pod, or not to its container %s", pod, launcherpod.ComputeContainer)
	}
	return nil
}

// cgroupInPod reports whether a /proc/<pid>/cgroup file, of version 1 or 2, names a Pod's cgroup, which the
// kubelet calls pod<UID> with cgroupfs and …-pod<UID with underscores>.slice with systemd.
// Source: kubernetes pkg/kubelet/cm/{pod_container_manager_linux,cgroup_manager_linux}.go.
// Below it, runtimes name a container's cgroup by its ID, with or without a prefix and the suffix .scope.
func cgroupInPod(r io.Reader, pod types.UID, container string) (bool, error) {
	cgroupfs := "pod" + string(pod)
	systemd := "-pod" + strings.ReplaceAll(string(pod), "-", "_") + ".slice"
	scanner := bufio.NewScanner(r)
	for scanner.Scan() {
		// <hierarchy>:<controllers>:<path>
		parts := strings.SplitN(scanner.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		in := false
		for element := range strings.SplitSeq(parts[2], "/") {
			if in && strings.Contains(element, container) {
				return true, nil
			}
			in = in || element == cgroupfs || (strings.HasPrefix(element, "kubepods") && strings.HasSuffix(element, systemd))
		}
		if in && container == "" {
			return true, nil
		}
	}
	return false, scanner.Err()
}

// connectSocket connects to a socket by its inode.
func connectSocket(socket *os.File) (*net.UnixConn, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: throughFD(socket)})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket.Name(), err)
	}
	return conn, nil
}
